package metrics

import "github.com/prometheus/client_golang/prometheus"

// modelFamilies are about selections by model. Those with Dynamo's names are the
// ones that its documentation of request rejection and its frontend have.
var modelFamilies = []family{
	{
		"rejections_total", "Selections rejected because all workers were overloaded or the wait queue was full, by cause; one may count under several causes.",
		prometheus.CounterValue,
		[]string{"model_name", "cause"},
		func(s *Sources) Samples { return s.Rejections },
	},
	{
		"busy_threshold", "Thresholds above which a rank is busy, where they are set.",
		prometheus.GaugeValue,
		[]string{"model_name", "threshold"},
		func(s *Sources) Samples { return s.BusyThresholds },
	},
	{
		"workers_unjudged", "Workers of which a threshold that is set says nothing, as their record has no total_kv_blocks or no max_num_batched_tokens.",
		prometheus.GaugeValue,
		[]string{"model_name", "threshold"},
		func(s *Sources) Samples { return s.WorkersUnjudged },
	},
	{
		"dynamo_tasks_issued_total", "Selections asked for, but for malformed ones; one that waits counts from then on, others when they are answered.",
		prometheus.CounterValue,
		[]string{"model", "endpoint"},
		func(s *Sources) Samples { return s.TasksIssued },
	},
	{
		"dynamo_tasks_rejected_total", "Selections rejected because every worker that could serve them was overloaded.",
		prometheus.CounterValue,
		[]string{"model", "endpoint"},
		func(s *Sources) Samples { return s.TasksRejected },
	},
	{
		"dynamo_queued_requests", "Selections that wait for a rank that is not busy.",
		prometheus.GaugeValue,
		[]string{"model", "endpoint"},
		func(s *Sources) Samples { return s.TasksQueued },
	},
	{
		"dynamo_frontend_model_rejection_total", "The same as dynamo_tasks_rejected_total.",
		prometheus.CounterValue,
		[]string{"model", "endpoint"},
		func(s *Sources) Samples { return s.TasksRejected },
	},
	{
		"dynamo_frontend_queued_requests", "The same as dynamo_queued_requests, endpoints together.",
		prometheus.GaugeValue,
		[]string{"model"},
		func(s *Sources) Samples { return s.ModelQueued },
	},
}
