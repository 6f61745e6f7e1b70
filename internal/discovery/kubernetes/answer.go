package kubernetes

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/select-service/select-service/internal/discovery/kubernetes/mapping"
	"github.com/select-service/select-service/pkg/catalog"
)

// AnswerOf returns what an engine's description says to discovery.
func AnswerOf(d *catalog.Description) mapping.Answer {
	a := mapping.Answer{
		Model: d.Model, Adapters: d.Adapters, BlockSize: d.BlockSize, TotalKVBlocks: d.TotalKVBlocks, Ranks: d.Size,
		EventsPort: firstPort(d.KVEventsEndpoints), ReplayPort: firstPort(d.ReplayEndpoints),
		LoadPort: firstPort(d.LoadEndpoints),
	}
	// Only what the worker cannot do without is a problem.
	switch {
	case d.Model == "":
		a.Problem = d.Unknown[catalog.FieldModel]
	case d.BlockSize == 0:
		a.Problem = d.Unknown[catalog.FieldBlockSize]
	}
	return a
}

// firstPort returns the port of the lowest rank, 0 if there is none.
func firstPort(byRank map[uint32]string) uint16 {
	if len(byRank) == 0 {
		return 0
	}
	endpoint := byRank[slices.Min(slices.Collect(maps.Keys(byRank)))]
	n, _ := strconv.ParseUint(endpoint[strings.LastIndexByte(endpoint, ':')+1:], 10, 16)
	return uint16(n)
}
