// Package e2e is the harness of all tests that run the built program. It builds the
// service once (or takes the build that SELECT_SERVICE_BIN names), runs it as a
// process of its own with a clean environment, on a port that nothing else takes,
// and is its HTTP client.
//
// Nothing here depends on how fast the machine is: what has to happen is awaited,
// for as long as Patience, which only a failing test reaches. Rates, ratios and
// delays are judged by tests that call Alone first.
//
// The folders below hold the suites: blackbox is one process and what goes wrong
// around it, replicas is three with faulty links between them, retries is the Go
// client against restarts and losses, overload is more load than the engines take,
// proxy is engines that break and many clients around the proxy, restart is a process
// with its state on disk that is killed.
package e2e
