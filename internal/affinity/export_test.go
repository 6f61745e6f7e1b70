package affinity

// LimitWaiting lowers the limits of those who wait. It comes before all use.
func (t *Table) LimitWaiting(all, each int) { t.maxWaiting, t.maxSessionWaiting = all, each }
