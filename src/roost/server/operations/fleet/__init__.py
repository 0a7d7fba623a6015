"""Operations on nodes, pools and servers."""
