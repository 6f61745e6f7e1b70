package slotset

// Others returns word w of the slots that are in no class.
func (d *Depths) Others(w int) uint64 {
	if w < len(d.others) {
		return d.others[w]
	}
	return 0
}
