package httpapi

import (
	"net/http"
	"strconv"

	"github.com/gin-gonic/gin"

	"github.com/select-service/select-service/internal/service"
	"github.com/select-service/select-service/pkg/catalog"
)

// workerCatalog registers and lists workers; nil filters take all names.
type workerCatalog interface {
	PutWorker(catalog.Record) (*catalog.Worker, error)
	PatchWorker(id uint64, patch catalog.Patch) (*catalog.Worker, error)
	DeleteWorker(id uint64) (*catalog.Worker, error)
	// Workers lists by model, tenant and id.
	Workers(model, tenant *string) []*catalog.Worker
	// Ready counts the schedulable workers and lists all.
	Ready() (ready bool, schedulable int, workers []*catalog.Worker)
	// Recovery tells how far the index has come from the peers; configured is
	// false without peers.
	Recovery() (status service.RecoveryStatus, configured bool)
}

type workerRoutes struct {
	svc workerCatalog
	d   dialect
}

func (r workerRoutes) put(_ *gin.Context, b *workerBody, out []byte) (int, []byte, error) {
	w, err := r.svc.PutWorker(b.record())
	if err != nil {
		return 0, nil, err
	}
	return http.StatusCreated, r.d.appendWorker(out, w), nil
}

func (r workerRoutes) patch(c *gin.Context, b *catalog.Patch, out []byte) (int, []byte, error) {
	id, err := pathUint64(c, "worker_id")
	if err != nil {
		return 0, nil, err
	}
	w, err := r.svc.PatchWorker(id, *b)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, r.d.appendWorker(out, w), nil
}

func (r workerRoutes) remove(c *gin.Context, out []byte) (int, []byte, error) {
	id, err := pathUint64(c, "worker_id")
	if err != nil {
		return 0, nil, err
	}
	w, err := r.svc.DeleteWorker(id)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, r.d.appendWorker(out, w), nil
}

func (r workerRoutes) list(c *gin.Context, out []byte) (int, []byte, error) {
	f, err := filterOf(c.Request)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, appendList(out, r.svc.Workers(f.model, f.tenant), r.d.appendWorker), nil
}

func (r workerRoutes) ready(_ *gin.Context, out []byte) (int, []byte, error) {
	ready, schedulable, workers := r.svc.Ready()
	status := http.StatusServiceUnavailable
	if ready {
		status = http.StatusOK
	}
	out = append(out, '{')
	out = strconv.AppendBool(appendKey(out, "ready"), ready)
	out = appendUintField(out, "schedulable_workers", uint64(schedulable))
	out = appendList(appendKey(out, "workers"), workers, r.d.appendWorker)
	if recovery, configured := r.svc.Recovery(); configured { // decision S6
		out = appendRecovery(appendKey(out, "recovery"), recovery)
	}
	return status, append(out, '}'), nil
}

func appendRecovery(out []byte, r service.RecoveryStatus) []byte {
	out = append(out, '{')
	out = appendStringField(out, "stage", r.Stage.String())
	if r.Peer != "" {
		out = appendStringField(out, "peer", r.Peer)
	}
	out = appendUintField(out, "entries", r.Entries)
	out = appendUintField(out, "blocks", r.Blocks)
	out = appendUintField(out, "skipped", r.Skipped)
	out = strconv.AppendBool(appendKey(out, "complete"), r.Complete)
	out = appendStringField(out, "loads", r.Loads.String())
	return append(out, '}')
}
