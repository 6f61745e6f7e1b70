package selector

import "math"

// Summary is the size of the cached part of a prompt on the ranks of one
// worker, in tokens. Each tier includes the ones before it. Values saturate.
type Summary struct {
	Longest uint32 // the largest of the three
	GPU     uint32 // device
	CPU     uint32 // device and host
	Disk    uint32 // device, host and disk
}

// Add raises the summary to what one more rank of the worker has.
func (s *Summary) Add(p Prompt, c *Candidate) {
	device := uint64(c.Device)
	host := device + uint64(c.Host)
	disk := host + uint64(c.Disk)
	s.GPU = max(s.GPU, p.tokens(device))
	s.CPU = max(s.CPU, p.tokens(host))
	s.Disk = max(s.Disk, p.tokens(disk))
	s.Longest = max(s.GPU, s.CPU, s.Disk)
}

// DeviceTokens returns the length in tokens of the rank's device prefix.
func DeviceTokens(p Prompt, c *Candidate) uint32 {
	return p.tokens(uint64(c.Device))
}

// tokens returns blocks as tokens; blocks is at most three times 2^32.
func (p Prompt) tokens(blocks uint64) uint32 {
	blocks = min(blocks, math.MaxUint32)
	return uint32(min(blocks*uint64(p.BlockSize), math.MaxUint32))
}
