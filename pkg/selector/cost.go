package selector

import "math"

// Prompt is the size of the prompt to place.
type Prompt struct {
	Tokens    uint64 // L, the whole prompt
	Blocks    int    // N, its complete blocks
	BlockSize uint32 // B, tokens per block
}

// Partial returns the blocks that p fills only in part: its length in blocks,
// rounded up, beyond its complete ones.
func (p Prompt) Partial() uint64 {
	size := uint64(max(p.BlockSize, 1))
	all := p.Tokens / size
	if p.Tokens%size != 0 {
		all++
	}
	return all - min(all, uint64(max(p.Blocks, 0)))
}

// Candidate is one eligible rank as this prompt sees it. Tiers extend each
// other: Host counts the blocks that follow the device prefix, Disk those that
// follow both.
type Candidate struct {
	Device  uint32  // G, leading blocks cached on the device
	Host    uint32  // H, further blocks cached in host memory
	Disk    uint32  // D, further blocks on disk or in external storage
	Prefill uint64  // P, tokens of unfinished prefill on the rank
	Active  uint64  // A, active blocks on the rank
	Shared  uint32  // S, leading blocks of the prompt that are active there anyway
	Known   bool    // false: the ledger has no loads of this rank yet
	Taint   float64 // factor of the preferred taints, see TaintFactor; 0 is read as 1

	Requests uint32 // active requests on the rank
}

// Cached returns how many tokens of prompts like p the rank need not compute.
// Each tier counts by its weight, except that the device counts in full,
// whatever the overlap credit. Halves are rounded away from zero.
func (w Weights) Cached(p Prompt, c *Candidate) uint64 {
	blocks := float64(c.Device) + w.Host*float64(c.Host) + w.Disk*float64(c.Disk)
	return saturate(math.Round(p.blockSize() * blocks))
}

// EffectivePrefill returns the tokens that the rank would have to compute, and
// that a reservation of p on it adds to its prefill load.
func (w Weights) EffectivePrefill(p Prompt, c *Candidate) uint64 {
	return p.Tokens - min(p.Tokens, w.Cached(p, c))
}

// CreditBlocks returns the blocks that the cost function takes off for what
// the rank has cached, without the decay (router_credit_blocks on the wire).
func (w Weights) CreditBlocks(c *Candidate) float64 {
	return min(w.credit(c, w.OverlapCredit), math.MaxFloat64)
}

func (w Weights) credit(c *Candidate, device float64) float64 {
	return device*float64(c.Device) + w.Host*float64(c.Host) + w.Disk*float64(c.Disk)
}

// PotentialPrefill returns the rank's prefill load in tokens once p is booked
// on it. Without prefill tracking a reservation adds nothing.
func (w Weights) PotentialPrefill(p Prompt, c *Candidate) uint64 {
	if !w.TrackPrefill {
		return c.Prefill
	}
	return addSaturating(c.Prefill, w.EffectivePrefill(p, c))
}

// PotentialDecode returns the rank's active blocks once p is booked on it.
func PotentialDecode(p Prompt, c *Candidate) uint64 {
	blocks := uint64(max(p.Blocks, 0))
	return addSaturating(c.Active, blocks-min(blocks, uint64(c.Shared)))
}

// Costs returns the cost of p on every candidate, in blocks and in their
// order, in dst's memory where that suffices. Costs are finite and not
// negative. cands must be all the eligible ranks: the decay of the overlap
// credit compares each with the one that has the least prefill load.
func (w Weights) Costs(p Prompt, cands []Candidate, dst []float64) []float64 {
	return w.costs(&w, p, cands, dst)
}

// costs are the costs where service has the weights by which the loads are counted.
func (w *Weights) costs(service *Weights, p Prompt, cands []Candidate, dst []float64) []float64 {
	dst = dst[:0]
	decay := w.newDecay(p, cands)
	prefix := w.PrefixOnly && !w.TrackPrefill && w.OverlapCredit > 0
	for i := range cands {
		c := &cands[i]
		var cost float64
		if prefix {
			cost = w.prefixCost(p, c)
		} else {
			cost = w.prefillCost(service, p, c, decay)
			if c.Known {
				cost += float64(PotentialDecode(p, c))
			}
		}
		if w.ActiveRequests != 0 {
			cost += w.ActiveRequests * float64(c.Requests)
		}
		if c.Taint != 0 {
			cost *= c.Taint
		}
		dst = append(dst, min(cost, math.MaxFloat64))
	}
	return dst
}

// prefixCost is the decode work on the rank less what is cached there, for pools
// whose prefill is not tracked because it is done elsewhere (dynamo-kv-router
// 1.6.1). It is cut off at 0 because the taints multiply it.
func (w Weights) prefixCost(p Prompt, c *Candidate) float64 {
	if !c.Known {
		return 0
	}
	return max(0, float64(PotentialDecode(p, c))-w.credit(c, w.OverlapCredit))
}

// prefillCost weighs the prompt work that would be on the rank, less what is
// cached there. A rank without known loads is charged the prompt alone. The
// prompt's length is that of its tokens to compute and its cached ones, both as
// service counts them; it is more than p.Tokens if more than those are cached.
func (w *Weights) prefillCost(service *Weights, p Prompt, c *Candidate, d decay) float64 {
	if !w.TrackPrefill {
		return 0
	}
	tokens := float64(p.Tokens)
	var active float64
	if c.Known {
		active = float64(c.Prefill)
		tokens = active + max(tokens, float64(service.Cached(p, c)))
	}
	credit := w.credit(c, w.OverlapCredit*d.factor(active))
	return w.PrefillScale * max(0, tokens/p.blockSize()-credit)
}

// decay lowers the credit of device blocks on ranks with more prefill work
// than the least loaded one, relative to the size of the prompt.
type decay struct {
	rate      float64 // 0: no decay
	least     float64 // tokens of prefill on the least loaded eligible rank
	blockSize float64
	blocks    float64 // of the prompt, a partial last one included, at least 1
}

func (w Weights) newDecay(p Prompt, cands []Candidate) decay {
	if w.CreditDecay == 0 || !w.TrackPrefill || len(cands) == 0 {
		return decay{}
	}
	least := uint64(math.MaxUint64)
	for i := range cands {
		if !cands[i].Known {
			least = 0
			break
		}
		least = min(least, cands[i].Prefill)
	}
	return decay{
		rate:      w.CreditDecay,
		least:     float64(least),
		blockSize: p.blockSize(),
		blocks:    max(1, math.Ceil(float64(p.Tokens)/p.blockSize())),
	}
}

// factor is in [0, 1]; active is the rank's prefill load in tokens.
func (d decay) factor(active float64) float64 {
	if d.rate == 0 {
		return 1
	}
	excess := (active - d.least) / d.blockSize / d.blocks
	return 1 / (1 + d.rate*excess)
}

// blockSize returns B. The catalog attaches no worker without a block size; 1
// stands in for it so that no input yields NaN.
func (p Prompt) blockSize() float64 {
	return float64(max(p.BlockSize, 1))
}

func saturate(f float64) uint64 {
	if f >= math.MaxUint64 {
		return math.MaxUint64
	}
	return uint64(f)
}

func addSaturating(a, b uint64) uint64 {
	if sum := a + b; sum >= a {
		return sum
	}
	return math.MaxUint64
}

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
