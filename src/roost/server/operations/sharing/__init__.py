"""Operations on projects, access and secrets."""
