package metrics

import (
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// family describes a metric family and finds its samples.
type family struct {
	name   string // without the namespace, unless it is Dynamo's
	help   string
	kind   prometheus.ValueType
	labels []string
	source func(*Sources) Samples
}

// families are always shown; aliases are not among them.
var families = slices.Concat(eventFamilies, selectionFamilies, modelFamilies, rankFamilies, replicaFamilies, conductorFamilies)

// histogramFamily is a family of histograms.
type histogramFamily struct {
	name   string // without the namespace
	help   string
	labels []string
	source func(*Sources) []Distribution
}

var histogramFamilies = []histogramFamily{
	{
		"selection_overlap_ratio", "Share of the prompt's complete blocks that the chosen rank had cached, in all tiers together; prompts without a complete block do not count.",
		[]string{"model_name"},
		func(s *Sources) []Distribution { return s.OverlapRatio },
	},
	{
		"selection_overlap_foregone_blocks", "Blocks of the prompt that the chosen rank had cached fewer than the eligible rank with the most, overloaded workers included.",
		[]string{"model_name"},
		func(s *Sources) []Distribution { return s.OverlapForegone },
	},
	{
		"selection_cost_spread_blocks", "Highest cost less lowest cost among the ranks that were compared, in blocks.",
		[]string{"model_name"},
		func(s *Sources) []Distribution { return s.CostSpread },
	},
	{
		"queue_wait_seconds", "Time in the wait queue of the selections that had to wait, however they ended.",
		[]string{"model_name"},
		func(s *Sources) []Distribution { return s.QueueWait },
	},
	{
		"kv_event_lag_seconds", "Age of live KV event messages when they came in, by the engine's time stamp; clocks that differ count.",
		nil,
		func(s *Sources) []Distribution { return s.KVEventLag },
	},
}

// describe makes the descriptor of a family. Dynamo's names are complete.
func describe(name, help string, labels ...string) *prometheus.Desc {
	if !strings.HasPrefix(name, "dynamo_") {
		name = prometheus.BuildFQName(namespace, "", name)
	}
	return prometheus.NewDesc(name, help, labels, nil)
}
