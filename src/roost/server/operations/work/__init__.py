"""Operations on workloads and their instances."""
