package openai

import (
	"fmt"
	"net/http"
	"strings"
)

// version is the release of vLLM whose answers these are.
const version = "0.33.0"

func (s *Server) serveVersion(w http.ResponseWriter, _ *http.Request) {
	reply(w, http.StatusOK, map[string]string{"version": version})
}

// serveSources names the event sockets of the ranks.
func (s *Server) serveSources(w http.ResponseWriter, _ *http.Request) {
	type source struct {
		Endpoint       string `json:"endpoint"`
		ReplayEndpoint string `json:"replay_endpoint"`
	}
	byRank := make(map[int]source)
	for i, rank := range s.opt.Ranks {
		info := rank.Info()
		byRank[i] = source{info.KVEventsEndpoint, info.ReplayEndpoint}
	}
	reply(w, http.StatusOK, byRank)
}

// serveMetrics tells load and capacity of the ranks, as a Prometheus page.
func (s *Server) serveMetrics(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	gauge := func(name string, value func(rank int) float64) {
		fmt.Fprintf(w, "# TYPE vllm:%s gauge\n", name)
		for i := range s.opt.Ranks {
			fmt.Fprintf(w, "vllm:%s{engine=\"%d\",model_name=\"%s\"} %v\n", name, i, labels.Replace(s.opt.Model), value(i))
		}
	}
	gauge("num_requests_running", func(rank int) float64 { return float64(s.opt.Ranks[rank].Usage().Running) })
	gauge("num_requests_waiting", func(rank int) float64 { return float64(s.opt.Ranks[rank].Usage().Waiting) })
	gauge("kv_cache_usage_perc", func(rank int) float64 {
		return float64(s.opt.Ranks[rank].Usage().Blocks) / float64(s.opt.Ranks[rank].Info().CacheBlocks)
	})
	fmt.Fprint(w, "# TYPE vllm:cache_config_info gauge\n")
	all := 0
	for _, rank := range s.opt.Ranks {
		all += rank.Info().CacheBlocks
	}
	for i, rank := range s.opt.Ranks { // each series has the sum over all ranks
		fmt.Fprintf(w, "vllm:cache_config_info{block_size=\"%d\",engine=\"%d\",num_gpu_blocks=\"%d\"} 1.0\n", rank.Info().BlockSize, i, all)
	}
}

// labels escapes the value of a label.
var labels = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)
