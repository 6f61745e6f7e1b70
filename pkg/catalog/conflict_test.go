package catalog_test

import (
	"math"
	"testing"

	"github.com/select-service/select-service/pkg/catalog"
)

// TestCapacityDiffers proves that 5 % of the record's number are no difference, in both directions.
func TestCapacityDiffers(t *testing.T) {
	for _, c := range []struct {
		record, engine uint64
		differs        bool
	}{
		{100, 100, false},
		{100, 105, false},
		{100, 106, true},
		{100, 95, false},
		{100, 94, true},
		{10, 10, false},
		{10, 9, true}, // less than a block of tolerance
		{0, 0, false},
		{0, 1, true},
		{1, 0, true},
		{math.MaxUint64, 1, true},
		{1, math.MaxUint64, true},
	} {
		equal(t, "differs", catalog.CapacityDiffers(c.record, c.engine), c.differs)
	}
}
