package enginelist_test

import (
	"fmt"
	"testing"

	"github.com/select-service/select-service/internal/workers/enginelist"
	"github.com/select-service/select-service/internal/workers/workerid"
	"github.com/select-service/select-service/pkg/catalog"
)

// TestEntries proves how an entry is read: its normal form, and the worker that it stands for.
func TestEntries(t *testing.T) {
	for entry, want := range map[string]string{
		"http://GPU-1:30000/":     "http://gpu-1:30000",
		"vllm=http://gpu-1:80":    "vllm=http://gpu-1",
		"sglang=https://gpu-1":    "sglang=https://gpu-1",
		"http://gpu-1/a=b":        "http://gpu-1/a=b",
		"trt=http://gpu-1":        "`trt=http://gpu-1` names another engine than vllm, sglang or trtllm",
		"vllm=gpu-1:8000":         "`gpu-1:8000` is not an http:// or https:// URL",
		"gpu-1":                   "`gpu-1` is not an http:// or https:// URL",
		"http://user@gpu-1:30000": "`http://user@gpu-1:30000` may have no more than a scheme, a host, a port and a path",
	} {
		got, err := enginelist.Check(entry)
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: %s, want %s", entry, got, want)
		}
	}
	r, err := enginelist.Record("vllm=HTTP://Gpu-1:8000/", catalog.ScopeFilter{})
	if err != nil || r.ID != workerid.Of("http://gpu-1:8000") || *r.Endpoint != "http://gpu-1:8000" || r.Describe.Engine != "vllm" || !r.Describe.Model {
		t.Errorf("%+v, %v", r, err)
	}
	r, err = enginelist.Record("http://gpu-1:8000", catalog.ScopeFilter{Model: new("m")})
	if err != nil || r.Scope.Model != "m" || r.Describe.Model {
		t.Errorf("in a set of one model: %+v, %v", r, err)
	}
	_, err = enginelist.New([]string{"http://gpu-1", "vllm=http://gpu-1:80"})
	if want := fmt.Sprintf("engine vllm=http://gpu-1:80: worker_id %d is given twice", workerid.Of("http://gpu-1")); fmt.Sprint(err) != want {
		t.Errorf("%v, want %s", err, want)
	}
}
