package fairness

import (
	"maps"
	"math"

	"github.com/select-service/select-service/pkg/catalog"
)

// Work is what a request is predicted to be for its rank. If all predictions for a rank are off by the same factor, nothing
// that is charged changes, once some prefills were observed.
type Work struct {
	Prefill float64 // seconds of its prefill
	// Answer is what a token of its answer adds to a step of the engine, as a part of what the prompts in the step take. Each step
	// gives a token to every answer that is being generated.
	Answer float64
	Tokens uint64 // of its prompt that are to compute, as they count in the load of a rank
	// Before is the load of the rank before the request, of all that is booked there by any process; the zero value: it is unknown.
	Before Load
}

// Load is what a rank has to do.
type Load struct {
	Tokens   uint64 // of prompts, to compute
	Requests uint32
}

// leastPrefill is the least prediction of a prefill, in seconds.
const leastPrefill = 1e-3

func (w Work) bounded() Work {
	w.Prefill, w.Answer = max(leastPrefill, bounded(w.Prefill)), min(bounded(w.Answer), 1)
	return w
}

// engine is what a rank does for requests that are charged.
//
// An engine computes several prompts in one step, and a prompt in several steps, so the time from one end of a prefill to the
// next does not tell what the second one took. The time in which a rank prefills is therefore shared by the predictions, unless
// there is only one prompt at a time.
type engine struct {
	prefilling, decoding int
	at                   float64 // when share was last brought up to date
	prefills             float64 // sum of Work.Prefill of those that prefill
	shared               bool    // there was more than one of these at a time since there was none

	share     float64 // integral of 1/decoding over the time without prefills
	answers   float64 // sum of Work.Answer of the answers that are being generated
	prefilled float64 // seconds that prefills were charged

	completed float64 // when a prefill last ended
	gaps      []span  // the last times before completed in which none of the prefills that have ended was due, in order

	// busy is the time in which the last prefills were computed, work what they and the tokens of answers beside them were
	// predicted to take, with the time constant scaleTime. owed is how much less of all the time was charged than there was.
	busy, work, owed float64

	// own is the part of the rank's load that is charged here, and kept what of its tokens is of requests that have not come.
	own  Load
	kept uint64
	// otherPrefills is how often others have prefills on the rank, and otherAnswers how many answers of theirs are generated
	// when they have none, as it was when requests were placed here.
	otherPrefills float64
	otherAnswers  int
}

// maxGaps bounds engine.gaps. A prefill that goes on through more of them is observed to be shorter.
const maxGaps = 16

type span struct{ from, to float64 }

const (
	scaleTime = 10.0 // seconds
	// Prefills are observed to take at most most times their predictions and mostSlack seconds, or mostAtFirst times while
	// nothing else is known of the rank: a clock may have jumped, or a report may have come late.
	most        = 10
	mostAtFirst = 100
	mostSlack   = 1
)

const (
	// engineIdle is for how many seconds a rank without requests is remembered at least.
	engineIdle = 3600
	// fewEngines is the number of ranks below which idle ones are not looked for.
	fewEngines = 256
)

// engine returns the state of a rank.
func (s *Service) engine(r catalog.Rank, now float64) *engine {
	if e := s.engines[r]; e != nil {
		return e
	}
	if len(s.engines) >= max(s.sweep, fewEngines) {
		maps.DeleteFunc(s.engines, func(_ catalog.Rank, e *engine) bool {
			return e.prefilling+e.decoding == 0 && (now < e.at || now-e.at > engineIdle)
		})
		s.sweep = 2 * len(s.engines)
	}
	e := &engine{at: now}
	s.engines[r] = e
	return e
}

// advance brings share up to date.
func (e *engine) advance(now float64) {
	if e.decoding > 0 && e.prefilling == 0 {
		e.share += (1 - e.otherPrefills) * min(max(0, now-e.at), maxSeconds) / float64(e.decoding+e.otherAnswers)
	}
	e.at = now
}

// otherRate is the weight of one look in engine.otherPrefills.
const otherRate = 0.1

// look compares the load of the rank before a request is placed with what is charged here: the rest is what other replicas have
// placed, and what nobody pays for. It returns the part of the prefills that is charged here, that of the request included.
func (e *engine) look(w Work) (part float64) {
	other := w.Before.Tokens - min(w.Before.Tokens, e.own.Tokens)
	prefills := 0.0
	if other > 0 {
		prefills = 1
	} else {
		e.otherAnswers = int(w.Before.Requests - min(w.Before.Requests, e.own.Requests))
	}
	e.otherPrefills += otherRate * (prefills - e.otherPrefills)
	own := float64(e.own.Tokens - e.kept + max(1, w.Tokens))
	return own / (own + float64(other))
}

// prefillEnded notes that the prefill of a request that was booked at a time has ended, and that its answer is generated. part is
// that of the rank's prefills that is charged here. It returns the seconds of the prefill.
func (e *engine) prefillEnded(w Work, part, booked, now float64) float64 {
	took := part * e.observe(booked, now)
	typical := min(took, e.longest())
	kept, answers := math.Exp(-typical/scaleTime), w.Prefill*e.answers
	e.busy, e.work = kept*e.busy+typical, kept*e.work+w.Prefill+answers
	scale := max(0, e.busy+e.owed) / e.work
	prefill := scale * w.Prefill
	if e.shared {
		e.owed = min(max(-scaleTime, e.owed+typical-scale*(w.Prefill+answers)), scaleTime)
	} else {
		prefill = took / (1 + e.answers)
	}
	e.prefilled += prefill
	e.drop(w)
	e.decoding++
	e.answers += w.Answer
	return prefill
}

// scale is by how much more the rank takes for its work than is predicted.
func (e *engine) scale() float64 {
	if e.work == 0 {
		return 1
	}
	return e.busy / e.work
}

// longest returns the longest time that the prefills of the moment are believed to take.
func (e *engine) longest() float64 {
	if e.work == 0 {
		return mostAtFirst*e.prefills + mostSlack
	}
	return most*e.scale()*e.prefills + mostSlack
}

// observe returns how long of the time since a prefill was booked none of those was due that have ended before. So the times of
// all make up the time in which one of them was due, whatever becomes of requests whose prefill is never reported.
func (e *engine) observe(booked, now float64) float64 {
	took := max(0, now-max(booked, e.completed))
	for i := len(e.gaps) - 1; i >= 0 && e.gaps[i].to > booked; i-- {
		g := &e.gaps[i]
		took += g.to - max(booked, g.from)
		if g.to = booked; g.from >= booked {
			e.gaps = e.gaps[:i]
		}
	}
	if booked > e.completed {
		if len(e.gaps) == maxGaps {
			e.gaps = e.gaps[:copy(e.gaps, e.gaps[1:])]
		}
		e.gaps = append(e.gaps, span{e.completed, booked})
	}
	e.completed = now
	return took
}

// begin notes that the rank works for a request.
func (e *engine) begin(w Work) {
	e.shared = e.shared || e.prefilling > 0
	e.prefilling++
	e.prefills += w.Prefill
}

// drop notes that a request does not prefill any more.
func (e *engine) drop(w Work) {
	if e.prefilling--; e.prefilling == 0 {
		e.prefills, e.shared = 0, false // without what rounding leaves
	} else {
		e.prefills = max(0, e.prefills-w.Prefill)
	}
}

// answerEnded notes that an answer has ended.
func (e *engine) answerEnded(w Work) {
	if e.decoding--; e.decoding == 0 {
		e.answers = 0
	} else {
		e.answers = max(0, e.answers-w.Answer)
	}
}
