"""Tables of a site that the tests play: what transactional tools and hooks write to."""
