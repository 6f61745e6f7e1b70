package history_test

import (
	"fmt"

	"github.com/select-service/select-service/pkg/reservations/history"
)

// An end that comes before the reservation keeps it from becoming live.
func Example() {
	memory := history.NewNumbered(1) // of the ledger of process 1
	one, two := history.Origin{Process: 2, Sequence: 1}, history.Origin{Process: 2, Sequence: 2}

	memory.End(two, history.Origin{}, 0)
	for _, o := range []history.Origin{one, two} {
		verdict, _ := memory.Admit(o, 0, false)
		fmt.Println(o.Sequence, verdict == history.MayLive)
	}
	memory.Leave(one, history.Freed)
	fmt.Println(memory.Ended()[2].Ranges)
	// Output:
	// 1 true
	// 2 false
	// [{1 2}]
}
