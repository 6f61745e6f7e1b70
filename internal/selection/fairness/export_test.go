package fairness

// Ranks returns how many ranks are remembered.
func (s *Service) Ranks() int { return len(s.engines) }
