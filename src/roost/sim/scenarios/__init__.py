"""What is asked of a simulated world: machines, workloads, and requests of users and operators at random times."""
