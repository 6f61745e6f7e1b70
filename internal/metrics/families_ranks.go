package metrics

import "github.com/prometheus/client_golang/prometheus"

var rankLabels = []string{"model_name", "tenant_id", "worker_id", "dp_rank"}

// rankFamilies are about single ranks and workers. A series ends with its
// worker.
var rankFamilies = []family{
	{
		"rank_active_kv_blocks", "KV blocks of the reservations on a rank.",
		prometheus.GaugeValue,
		rankLabels,
		func(s *Sources) Samples { return s.RankActiveBlocks },
	},
	{
		"rank_active_prefill_tokens", "Prompt tokens that a rank still has to compute for its reservations.",
		prometheus.GaugeValue,
		rankLabels,
		func(s *Sources) Samples { return s.RankPrefillTokens },
	},
	{
		"rank_active_requests", "Reservations on a rank.",
		prometheus.GaugeValue,
		rankLabels,
		func(s *Sources) Samples { return s.RankActiveRequests },
	},
	{
		"rank_used_kv_blocks", "KV blocks on a rank's device that the index knows of; cached ones that nothing uses count.",
		prometheus.GaugeValue,
		rankLabels,
		func(s *Sources) Samples { return s.RankUsedBlocks },
	},
	{
		"rank_total_kv_blocks", "KV blocks that a rank's device has room for, where the worker's record says.",
		prometheus.GaugeValue,
		rankLabels,
		func(s *Sources) Samples { return s.RankTotalBlocks },
	},
	{
		"rank_max_num_batched_tokens", "Prompt tokens that a rank computes in one step, where the worker's record says.",
		prometheus.GaugeValue,
		rankLabels,
		func(s *Sources) Samples { return s.RankBatchedTokens },
	},
	{
		"ranks_unlisted", "Ranks that are too many to have series of their own.",
		prometheus.GaugeValue,
		nil,
		func(s *Sources) Samples { return s.RanksUnlisted },
	},
	{
		"worker_overloaded", "1 if all ranks of a worker are above a busy threshold, else 0; only for models that have a threshold.",
		prometheus.GaugeValue,
		rankLabels[:3],
		func(s *Sources) Samples { return s.WorkerOverloaded },
	},
	{
		"dynamo_frontend_worker_active_decode_blocks", "The same as select_service_rank_active_kv_blocks, without the slot tracker's workers.",
		prometheus.GaugeValue,
		[]string{"worker_id", "dp_rank", "worker_type"},
		func(s *Sources) Samples { return s.FrontendBlocks },
	},
	{
		"dynamo_frontend_worker_active_prefill_tokens", "The same as select_service_rank_active_prefill_tokens, without the slot tracker's workers.",
		prometheus.GaugeValue,
		[]string{"worker_id", "dp_rank", "worker_type"},
		func(s *Sources) Samples { return s.FrontendPrefill },
	},
}
