package indexer

// Check exports the invariants to the tests of the package's users.
func (s *Space) Check() error { return s.check() }
