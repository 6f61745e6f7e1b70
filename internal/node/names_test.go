package node_test

import (
	"context"
	"strings"
	"testing"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/diagnose"
	"github.com/select-service/select-service/internal/selection/overload"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// TestLongNames: no worker can have a name of more than 1,024 bytes; a request
// for one gets the answers of an unknown one, which repeat only its beginning.
func TestLongNames(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff)
	w.Put(servicetest.Record(1, 1))
	long := strings.Repeat("n", catalog.MaxName+1)
	sc, cut := catalog.Scope{Model: long, Tenant: long}, strings.Repeat("n", 256)+"…"
	both := "model=" + cut + " tenant=" + cut

	r := servicetest.Record(2, 1)
	r.Scope.Tenant = long
	_, err := w.PutWorker(r)
	servicetest.WantError(t, err, contract.BadRequest, "tenant_id has 1025 bytes, the maximum is 1024")
	err = w.SlotsRegister(node.SlotsWorker{Worker: 3, Scope: sc, BlockSize: servicetest.BlockSize, DPSize: 1})
	servicetest.WantError(t, err, contract.BadRequest, "model_name has 1025 bytes, the maximum is 1024")

	req := servicetest.Ask(servicetest.Prompt(1, 8))
	req.Scope = sc
	_, err = w.Select(context.Background(), req, true)
	servicetest.WantError(t, err, contract.Unavailable, "no schedulable workers for "+both)
	_, err = w.Diagnose(&diagnose.Request{Scope: sc}, 0)
	servicetest.WantError(t, err, contract.Unavailable, "no schedulable workers for "+both)
	servicetest.WantError(t, w.SlotsAdd(&node.SlotsReservation{Scope: sc}), contract.NotFound, "no slot tracker for "+both)
	servicetest.WantError(t, w.SlotsUnregister(sc, 3), contract.NotFound, "worker 3 not found for "+both)
	_, err = w.SetBusyThreshold(long, overload.Thresholds{PrefillTokens: new(uint64(1))})
	servicetest.WantError(t, err, contract.NotFound, "Model '"+cut+"' not found. Thresholds can only be set for discovered models.")

	req.Scope = catalog.Scope{Model: long[1:], Tenant: "t"} // a worker could have this one
	_, err = w.Select(context.Background(), req, true)
	servicetest.WantError(t, err, contract.Unavailable, "no schedulable workers for model="+long[1:]+" tenant=t")
}
