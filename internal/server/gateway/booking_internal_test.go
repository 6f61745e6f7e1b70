package gateway

import (
	"testing"
	"time"

	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/server/gateway/counts"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// TestEarlyEvent: an event that tells of the end of the prefill before the booking knows its
// reservation counts as soon as it does.
func TestEarlyEvent(t *testing.T) {
	w := servicetest.Start(t)
	w.Put(servicetest.Record(1, 1))
	b := newBookings(w.API, time.Minute, 1).open(servicetest.Scope, counts.NewGateway().Of(counts.ExtProc))
	b.completePrefill(counts.PrefillByEvent)
	sel, err := w.Select(t.Context(), &selection.SelectRequest{
		Scope: servicetest.Scope, Prompt: selection.Prompt{TokenIDs: servicetest.Prompt(1, 16), HasTokenIDs: true},
	}, true)
	if err != nil {
		t.Fatal(err)
	}
	b.add(&sel, nil, nil)
	if l := w.Loads(nil, nil)[0].Loads[0]; l.PrefillTokens != 0 || l.Requests != 1 {
		t.Errorf("the load is %+v", l)
	}
	b.free()
}
