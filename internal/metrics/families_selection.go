package metrics

import "github.com/prometheus/client_golang/prometheus"

// selectionFamilies are about workers, selections and reservations.
var selectionFamilies = []family{
	{
		"workers", "Registered workers by lifecycle.",
		prometheus.GaugeValue,
		[]string{"lifecycle"},
		func(s *Sources) Samples { return s.Workers },
	},
	{
		"ready", "1 if the service can serve requests, as its readiness check says, else 0.",
		prometheus.GaugeValue,
		nil,
		func(s *Sources) Samples { return s.Ready },
	},
	{
		"selections_total", "Selections by outcome.",
		prometheus.CounterValue,
		[]string{"outcome"},
		func(s *Sources) Samples { return s.Selections },
	},
	{
		"reservations_live", "Reservations that are not freed.",
		prometheus.GaugeValue,
		nil,
		func(s *Sources) Samples { return s.ReservationsLive },
	},
	{
		"reservation_events_total", "Reservations booked and ended, by event; freed_late is a free that came after the reservation had expired.",
		prometheus.CounterValue,
		[]string{"event"},
		func(s *Sources) Samples { return s.ReservationEvents },
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
