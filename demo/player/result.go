package main

import (
	"slices"
	"time"

	"github.com/select-service/select-service/demo/sim/simapi"
	"github.com/select-service/select-service/demo/sim/stats"
)

// result has the figures of one policy. All but the last group are measured by the
// engines, in model time.
type result struct {
	Policy          string  `json:"policy"`
	Model           string  `json:"model,omitempty"` // model under which the service had the engines
	Round           int     `json:"round"`           // from 1
	Requests        int     `json:"requests"`        // finished
	HitRate         float64 `json:"hit_rate"`        // share of the prompt tokens found in the engines' caches
	TTFTMeanMS      float64 `json:"ttft_mean_ms"`
	TTFTP50MS       float64 `json:"ttft_p50_ms"`
	TTFTP90MS       float64 `json:"ttft_p90_ms"`
	TTFTP99MS       float64 `json:"ttft_p99_ms"`
	TPOTMeanMS      float64 `json:"tpot_mean_ms"` // time per output token after the first
	TPOTP50MS       float64 `json:"tpot_p50_ms"`
	TPOTP90MS       float64 `json:"tpot_p90_ms"`
	TPOTP99MS       float64 `json:"tpot_p99_ms"`
	TotalMeanMS     float64 `json:"total_mean_ms"` // from arrival to the last token
	TotalP99MS      float64 `json:"total_p99_ms"`
	Sessions        int     `json:"sessions,omitempty"`       // of a closed loop
	SessionMeanS    float64 `json:"session_mean_s,omitempty"` // from when a session's first request is due to its last answer, in seconds of model time
	SessionP99S     float64 `json:"session_p99_s,omitempty"`
	AskedTTFTMeanMS float64 `json:"asked_ttft_mean_ms"` // TTFT with the choice before it: the wait in a queue of the service, but also its real delays, as model time
	AskedTTFTP99MS  float64 `json:"asked_ttft_p99_ms"`
	BusySpread      float64 `json:"busy_spread"`     // highest prefill time of an engine over the mean
	RequestSpread   float64 `json:"requests_spread"` // most requests on an engine over the mean
	Load            float64 `json:"load"`            // share of the time that engines spent in prefill
	ModelSeconds    float64 `json:"model_seconds"`
	RequestsPerEach []int   `json:"requests_per_engine"`

	ChoiceMeanMS float64  `json:"choice_mean_ms"` // real time of a decision
	ChoiceP99MS  float64  `json:"choice_p99_ms"`
	LateP99MS    float64  `json:"late_p99_ms"` // lateness of the player's requests in model time; high if the machine is busy
	LateMaxMS    float64  `json:"late_max_ms"`
	WallSeconds  float64  `json:"wall_seconds"`
	Failed       int      `json:"failed"`           // requests without a full answer
	Unreported   int      `json:"unreported"`       // requests with failed lifecycle calls
	Errors       []string `json:"errors,omitempty"` // the first few

	Phases []phaseResult `json:"phases,omitempty"` // with a disturbance
	// DisturbedSeconds is the real time from the disturbance until all replicas were back.
	DisturbedSeconds float64 `json:"disturbed_seconds,omitempty"`
	Spoilt           bool    `json:"spoilt,omitempty"` // a replica was down after the play, or still had reservations

	first []firstToken // for the plot
}

const shownErrors = 5

// maxLate is the lateness, in ms of model time, beyond which a play means little: requests that
// should have come one by one came at once.
const maxLate = 1000

func newResult(name string, engines []simapi.Stats, r *playRun) result {
	res := result{Policy: name, Failed: len(r.failed), Unreported: len(r.lost), WallSeconds: r.wall.Seconds(), first: r.first}
	var ttft, tpot, total, busy, count []float64
	var prompt, cached int
	for _, s := range engines {
		res.Requests += s.Requests
		res.ModelSeconds = max(res.ModelSeconds, s.ModelSeconds)
		res.RequestsPerEach = append(res.RequestsPerEach, s.Requests)
		prompt += s.PromptTokens
		cached += s.CachedTokens
		ttft = append(ttft, s.TTFTMS...)
		tpot = append(tpot, s.TPOTMS...)
		total = append(total, s.TotalMS...)
		busy = append(busy, s.PrefillBusyMS)
		count = append(count, float64(s.Requests))
	}
	if prompt > 0 {
		res.HitRate = float64(cached) / float64(prompt)
	}
	res.TTFTMeanMS, res.TTFTP50MS, res.TTFTP90MS, res.TTFTP99MS = stats.Mean(ttft), stats.Quantile(ttft, 0.5), stats.Quantile(ttft, 0.9), stats.Quantile(ttft, 0.99)
	res.TPOTMeanMS, res.TPOTP50MS, res.TPOTP90MS, res.TPOTP99MS = stats.Mean(tpot), stats.Quantile(tpot, 0.5), stats.Quantile(tpot, 0.9), stats.Quantile(tpot, 0.99)
	res.TotalMeanMS, res.TotalP99MS = stats.Mean(total), stats.Quantile(total, 0.99)
	var sessions []float64
	for _, s := range r.sessions {
		sessions = append(sessions, s.until.Sub(s.from).Seconds()*r.conf.Speedup)
	}
	res.Sessions, res.SessionMeanS, res.SessionP99S = len(sessions), stats.Mean(sessions), stats.Quantile(sessions, 0.99)
	var asked []float64
	for _, f := range r.first {
		asked = append(asked, f.choice+f.ttft)
	}
	res.AskedTTFTMeanMS, res.AskedTTFTP99MS = stats.Mean(asked), stats.Quantile(asked, 0.99)
	res.BusySpread, res.RequestSpread = spread(busy), spread(count)
	if res.ModelSeconds > 0 {
		res.Load = stats.Mean(busy) / 1000 / res.ModelSeconds
	}
	var choice []float64
	for _, d := range r.choice {
		choice = append(choice, float64(d)/float64(time.Millisecond))
	}
	res.ChoiceMeanMS, res.ChoiceP99MS = stats.Mean(choice), stats.Quantile(choice, 0.99)
	res.LateP99MS, res.LateMaxMS = stats.Quantile(r.late, 0.99), stats.Quantile(r.late, 1)
	all := slices.Concat(r.failed, r.lost)
	for _, err := range all[:min(shownErrors, len(all))] {
		res.Errors = append(res.Errors, err.Error())
	}
	return res
}

// spread returns the largest sample over the mean: 1 is perfectly even.
func spread(xs []float64) float64 {
	if m := stats.Mean(xs); m > 0 {
		return slices.Max(xs) / m
	}
	return 0
}
