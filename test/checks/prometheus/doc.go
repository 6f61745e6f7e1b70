// Package prometheus holds the dashboard and the rules of deploy/ against the
// service. TestDashboard and its neighbours need nothing else than the files and
// run with all other tests. TestLive needs Debian's package prometheus and
// SELECT_SERVICE_PROMETHEUS=1 (make test-metrics): a real server scrapes real
// replicas that serve known traffic.
package prometheus
