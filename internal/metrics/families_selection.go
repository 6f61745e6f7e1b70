package metrics

import "github.com/prometheus/client_golang/prometheus"

// selectionFamilies are about workers, selections and reservations.
var selectionFamilies = []family{
	{
		"workers", "Registered workers by lifecycle; without a model_name those of models that are too many to have one.",
		prometheus.GaugeValue,
		[]string{"model_name", "lifecycle"},
		func(s *Sources) Samples { return s.Workers },
	},
	{
		"ready", "1 if the service can serve requests, as its readiness check says, else 0.",
		prometheus.GaugeValue,
		nil,
		func(s *Sources) Samples { return s.Ready },
	},
	{
		"selections_total", "Selections by outcome; without a model_name those for models that have no worker, or that are too many to have one.",
		prometheus.CounterValue,
		[]string{"model_name", "outcome"},
		func(s *Sources) Samples { return s.Selections },
	},
	{
		"reservations_live", "Reservations that are not freed.",
		prometheus.GaugeValue,
		nil,
		func(s *Sources) Samples { return s.ReservationsLive },
	},
	{
		"reservation_events_total", "Reservations booked and ended, by event; lease_expired is a part of expired, freed_late is a free that came after the reservation had expired.",
		prometheus.CounterValue,
		[]string{"event"},
		func(s *Sources) Samples { return s.ReservationEvents },
	},
	{
		"remembered_entries", "What is kept for callers that come back, by kind: first answers of live bookings, selections that wait for their booking, sessions, predicted blocks; session_waiters are the requests that wait for the first one of their session.",
		prometheus.GaugeValue,
		[]string{"kind"},
		func(s *Sources) Samples { return s.Remembered },
	},
	{
		"workers_file_changes_total", "Changes of the workers file, by outcome: applied or failed.",
		prometheus.CounterValue,
		[]string{"outcome"},
		func(s *Sources) Samples { return s.WorkersFile },
	},
	{
		"workers_file_stale", "1 if the last content of the workers file is not in force, because it is faulty or gone, else 0; what other calls have changed since is not looked at.",
		prometheus.GaugeValue,
		nil,
		func(s *Sources) Samples { return s.WorkersFileStale },
	},
	{
		"queued_requests", "Selections that wait for a rank that is not busy.",
		prometheus.GaugeValue,
		nil,
		func(s *Sources) Samples { return s.QueuedRequests },
	},
	{
		"queued_tokens", "Prompt tokens of the selections that wait.",
		prometheus.GaugeValue,
		nil,
		func(s *Sources) Samples { return s.QueuedTokens },
	},
}
