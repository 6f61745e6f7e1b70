package service_test

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/overload"
	"github.com/select-service/select-service/internal/service"
)

// TestStaleBookingRefusesNobody: a booking ends with its age for those whom it
// would refuse, and not only when the timer comes round, with a wait queue and
// without.
func TestStaleBookingRefusesNobody(t *testing.T) {
	for name, queue := range map[string]func(*service.Config){"at once": func(*service.Config) {}, "with a queue": queueing(1000)} {
		for _, reserve := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				w := start(t, eventsOff, limits(overload.Thresholds{PrefillTokens: new(uint64(0))}), queue)
				w.put(record(1, 1))
				time.Sleep(5 * time.Second) // the timer ticks every 30 s
				for i := range 100 {
					w.burden(strconv.Itoa(i), 1, 0, 1, 1)
				}
				time.Sleep(300 * time.Second)
				if _, err := w.Select(t.Context(), ask(prompt(1, 8)), reserve); err == nil {
					t.Errorf("%s, reserve %t: a booking of 300 s refuses nobody", name, reserve)
				}
				time.Sleep(time.Nanosecond)
				if _, err := w.Select(t.Context(), ask(prompt(1, 8)), reserve); err != nil {
					t.Errorf("%s, reserve %t: a booking of more than 300 s refuses: %v", name, reserve, err)
				}
			})
		}
	}
}
