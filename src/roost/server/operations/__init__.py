"""Operations: one typed async function per use case. REST, gRPC and forwarding between servers call these."""
