package admission

import "math"

// Within a strict priority, the waiters that want their first token by a time go first, by that time (dynamo-kv-router 1.6.1).
// One that cannot be in time any more is refused, or goes behind all others. So that nobody waits for ever, a waiter can be
// overtaken for Overtaken seconds only: then it goes before all that came later, whatever these want, and in any order of its
// class.
//
// In a class that is fair this is the order of a line, which is that of a tenant or a program: between these fairness decides.
// Else whoever asks for the shortest times would get all the engines.

// Overtaken is for how long a waiter can be overtaken by later ones of its strict priority, in seconds. It is the longest
// target of a first token, so that the deadlines of all targets are in order.
const Overtaken = 3600

// undue is Waiter.due of a waiter that does not say when it wants its first token. Those that cannot be in time any more have
// never, which is also the time of what does not come.
const undue = math.MaxFloat64

var never = math.Inf(1)

// begin sets where a waiter is in the order when it is queued.
func (w *Waiter) begin() {
	longest := w.Arrived + Overtaken
	w.due, w.alarm = undue, longest
	if w.Due > 0 {
		w.due, w.alarm = min(w.Due, longest), w.Latest
	}
}

// becomesLate reports whether the waiter cannot be in time any more, since now.
func (w *Waiter) becomesLate(now float64) bool { return w.Due > 0 && w.due != never && now >= w.Latest }

// age moves a waiter whose alarm has come to its new place in the order.
func (w *Waiter) age(now float64) {
	if longest := w.Arrived + Overtaken; now < longest {
		w.due, w.alarm = never, longest
	} else {
		w.due, w.alarm = longest, never
	}
}

// alarm is a waiter in the heap of Queue.alarms.
type alarm struct{ *Waiter }

func (a alarm) before(o alarm) bool { return a.alarm < o.alarm }
func (a alarm) moved(place int)     { a.alarmPlace = place }

// Expire gives new places to the waiters that cannot be in time any more, and to those that were overtaken for long enough. It
// calls refuse for each of the former, before its turn and once: if that returns true or panics, the waiter has ended and leaves the
// queue. refuse must not change the queue. Expire is to be called before Next, after Add, and when NextAlarm has come.
func (q *Queue) Expire(now float64, refuse func(*Waiter) bool) {
	for len(q.alarms) > 0 && q.alarms[0].alarm <= now {
		w := q.alarms[0].Waiter
		if w.becomesLate(now) && q.refused(w, refuse) {
			continue
		}
		w.age(now)
		q.alarms.fix(w.alarmPlace)
		q.backlogs[w.class.index].fix(w)
	}
}

// refused reports whether a waiter has ended by refuse, and takes it out if so.
func (q *Queue) refused(w *Waiter, refuse func(*Waiter) bool) (ended bool) {
	ended = true // if refuse panics, which it would do again
	defer func() {
		if ended {
			q.Remove(w)
		}
	}()
	ended = refuse(w)
	return ended
}

// NextAlarm returns when Expire has something to do, +Inf for never.
func (q *Queue) NextAlarm() float64 {
	if len(q.alarms) == 0 {
		return never
	}
	return q.alarms[0].alarm
}
