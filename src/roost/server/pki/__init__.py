"""Certificates, TLS, enrolment of nodes, encryption of secrets at rest."""
