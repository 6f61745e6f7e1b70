package memory_test

import (
	"fmt"

	"github.com/select-service/select-service/pkg/memory"
)

// Bytes are reserved before they are allocated; what does not fit is refused and counted.
func Example() {
	account := memory.NewAccount(memory.Requests, 1<<20)
	fmt.Println("700 KiB:", account.Reserve(700<<10))
	fmt.Println("400 KiB more:", account.Reserve(400<<10))
	account.Release(700 << 10)
	fmt.Println("in use:", account.Used(), "refused:", account.Refused())
	// Output:
	// 700 KiB: true
	// 400 KiB more: false
	// in use: 0 refused: 1
}
