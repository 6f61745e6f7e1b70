package client_test

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"

	"go.yaml.in/yaml/v3"

	"github.com/select-service/select-service/api"
	"github.com/select-service/select-service/pkg/client"
)

// only leaves the error of a call.
func only[A any](_ A, err error) error { return err }

// routes are all calls that send something, by operation id.
var routes = map[string]func(ctx context.Context, c *client.Client) error{
	"putWorker":     func(ctx context.Context, c *client.Client) error { return only(c.PutWorker(ctx, client.Worker{})) },
	"patchWorker":   func(ctx context.Context, c *client.Client) error { return only(c.PatchWorker(ctx, client.Worker{})) },
	"deleteWorker":  func(ctx context.Context, c *client.Client) error { return c.DeleteWorker(ctx, 1) },
	"drainWorker":   func(ctx context.Context, c *client.Client) error { return only(c.DrainWorker(ctx, 1, 0)) },
	"undrainWorker": func(ctx context.Context, c *client.Client) error { return only(c.UndrainWorker(ctx, 1)) },
	"reportLoad":    func(ctx context.Context, c *client.Client) error { return c.ReportLoad(ctx, 1, nil) },
	"listWorkers":   func(ctx context.Context, c *client.Client) error { return only(c.Workers(ctx, client.Scope{})) },
	"reconcileWorkers": func(ctx context.Context, c *client.Client) error {
		return only(c.ReplaceWorkers(ctx, client.Scope{}, nil))
	},
	"health": func(ctx context.Context, c *client.Client) error { return c.Health(ctx) },
	"ready":  func(ctx context.Context, c *client.Client) error { return only(c.Ready(ctx)) },

	"selectBatch": func(ctx context.Context, c *client.Client) error { return only(c.SelectBatch(ctx, nil)) },
	"select":      func(ctx context.Context, c *client.Client) error { return only(c.Select(ctx, client.SelectRequest{})) },
	"selectAndReserve": func(ctx context.Context, c *client.Client) error {
		return only(c.SelectAndReserve(ctx, client.SelectRequest{ID: "r"}))
	},
	"selectPair": func(ctx context.Context, c *client.Client) error {
		return only(c.SelectPair(ctx, client.PairRequest{ID: "r"}))
	},
	"reserve": func(ctx context.Context, c *client.Client) error {
		return only(c.Reserve(ctx, client.ReserveRequest{ID: "r"}))
	},
	"renew":           func(ctx context.Context, c *client.Client) error { return c.Renew(ctx, "r") },
	"prefillComplete": func(ctx context.Context, c *client.Client) error { return c.PrefillComplete(ctx, "r") },
	"outputBlock":     func(ctx context.Context, c *client.Client) error { return c.OutputBlock(ctx, "r", nil) },
	"free":            func(ctx context.Context, c *client.Client) error { return c.Free(ctx, "r") },

	"busyThresholds": func(ctx context.Context, c *client.Client) error { return only(c.BusyThresholds(ctx)) },
	"setBusyThreshold": func(ctx context.Context, c *client.Client) error {
		return only(c.SetBusyThresholds(ctx, client.Thresholds{}))
	},
	"clearBusyThreshold": func(ctx context.Context, c *client.Client) error { return c.UnsetBusyThresholds(ctx, "m") },

	"loads": func(ctx context.Context, c *client.Client) error { return only(c.Loads(ctx, client.Scope{})) },
	"potentialLoads": func(ctx context.Context, c *client.Client) error {
		return only(c.PotentialLoads(ctx, client.ProjectRequest{}))
	},
	"overlapScores": func(ctx context.Context, c *client.Client) error {
		return only(c.OverlapScores(ctx, client.ProjectRequest{}))
	},
	"explain": func(ctx context.Context, c *client.Client) error { return only(c.Explain(ctx, client.SelectRequest{})) },
	"tokenize": func(ctx context.Context, c *client.Client) error {
		return only(c.Tokenize(ctx, client.TokenizeRequest{}))
	},
	"decisions": func(ctx context.Context, c *client.Client) error { return only(c.Decisions(ctx, client.Scope{}, 1)) },
	"fairness": func(ctx context.Context, c *client.Client) error {
		return only(c.Fairness(ctx, client.FairnessQuery{By: "program"}))
	},
	"sessions": func(ctx context.Context, c *client.Client) error {
		return only(c.Sessions(ctx, client.SessionQuery{Limit: 1}))
	},
	"kubernetes":    func(ctx context.Context, c *client.Client) error { return only(c.Kubernetes(ctx)) },
	"fleet":         func(ctx context.Context, c *client.Client) error { return only(c.Fleet(ctx, client.Scope{}, "")) },
	"history":       func(ctx context.Context, c *client.Client) error { return only(c.History(ctx, client.Scope{}, 0)) },
	"prefixes":      func(ctx context.Context, c *client.Client) error { return only(c.Prefixes(ctx, client.Scope{}, 0)) },
	"doctor":        func(ctx context.Context, c *client.Client) error { return only(c.Doctor(ctx, client.Scope{})) },
	"replicas":      func(ctx context.Context, c *client.Client) error { return only(c.Replicas(ctx, client.Scope{})) },
	"replicaStatus": func(ctx context.Context, c *client.Client) error { return only(c.ReplicaStatus(ctx)) },
	"setPolicies":   func(ctx context.Context, c *client.Client) error { return only(c.SetPolicies(ctx, nil)) },
	"clearPolicies": func(ctx context.Context, c *client.Client) error { return only(c.ClearPolicies(ctx)) },
	"policies":      func(ctx context.Context, c *client.Client) error { return only(c.Policies(ctx, client.Scope{})) },
	"diagnose": func(ctx context.Context, c *client.Client) error {
		return only(c.Diagnose(ctx, client.DiagnoseRequest{}))
	},
	"dump": func(ctx context.Context, c *client.Client) error {
		body, err := c.Dump(ctx)
		if err == nil {
			err = body.Close()
		}
		return err
	},
	"openapi": func(ctx context.Context, c *client.Client) error { return only(c.OpenAPI(ctx)) },
	"metrics": func(ctx context.Context, c *client.Client) error { return only(c.Metrics(ctx)) },

	"listPeers":       func(ctx context.Context, c *client.Client) error { return only(c.Peers(ctx)) },
	"registerPeer":    func(ctx context.Context, c *client.Client) error { return c.RegisterPeer(ctx, "e") },
	"deregisterPeer":  func(ctx context.Context, c *client.Client) error { return c.DeregisterPeer(ctx, "e") },
	"replicaSnapshot": func(ctx context.Context, c *client.Client) error { return only(c.Snapshot(ctx, "a", 1)) },

	"slotsRegister": func(ctx context.Context, c *client.Client) error {
		return c.Slots().Register(ctx, client.SlotsWorker{})
	},
	"slotsUnregister": func(ctx context.Context, c *client.Client) error {
		return c.Slots().Unregister(ctx, client.SlotsScope{}, 1)
	},
	"slotsWorkers": func(ctx context.Context, c *client.Client) error { return only(c.Slots().Workers(ctx, client.Scope{})) },
	"slotsAdd":     func(ctx context.Context, c *client.Client) error { return c.Slots().Add(ctx, client.SlotsRequest{}) },
	"slotsPrefillComplete": func(ctx context.Context, c *client.Client) error {
		return c.Slots().PrefillComplete(ctx, client.SlotsScope{}, "r")
	},
	"slotsFree": func(ctx context.Context, c *client.Client) error {
		return c.Slots().Free(ctx, client.SlotsScope{}, "r")
	},
	"slotsLoads": func(ctx context.Context, c *client.Client) error { return only(c.Slots().Loads(ctx, client.Scope{})) },
	"slotsPotentialLoads": func(ctx context.Context, c *client.Client) error {
		return only(c.Slots().PotentialLoads(ctx, client.SlotsProjection{}))
	},
	"slotsHealth":         func(ctx context.Context, c *client.Client) error { return c.Slots().Health(ctx) },
	"slotsPeers":          func(ctx context.Context, c *client.Client) error { return only(c.Slots().Peers(ctx)) },
	"slotsRegisterPeer":   func(ctx context.Context, c *client.Client) error { return c.Slots().RegisterPeer(ctx, "e") },
	"slotsDeregisterPeer": func(ctx context.Context, c *client.Client) error { return c.Slots().DeregisterPeer(ctx, "e") },

	"conductorRegister": func(ctx context.Context, c *client.Client) error {
		return c.Conductor().Register(ctx, client.Publisher{})
	},
	"conductorUnregister": func(ctx context.Context, c *client.Client) error {
		return only(c.Conductor().Unregister(ctx, client.Publishers{}))
	},
	"conductorQuery": func(ctx context.Context, c *client.Client) error {
		return only(c.Conductor().Query(ctx, client.Question{}))
	},
	"conductorQueryByHash": func(ctx context.Context, c *client.Client) error {
		return only(c.Conductor().QueryByHash(ctx, client.Question{}))
	},
	"conductorDiagnose": func(ctx context.Context, c *client.Client) error {
		return only(c.Conductor().Diagnose(ctx, client.Question{}))
	},
	"conductorServices": func(ctx context.Context, c *client.Client) error { return only(c.Conductor().Services(ctx)) },
	"conductorHealth":   func(ctx context.Context, c *client.Client) error { return c.Conductor().Health(ctx) },
}

// operation is one of a document.
type operation struct {
	ID     string `yaml:"operationId"`
	method string
	path   string // with its prefix, a name in braces for a parameter
}

// described reads the operations of a document that a client of the 1.6 dialect
// sends: those under /v1.6 for all that have a dialect.
func described(t *testing.T, contract string) (all []operation) {
	t.Helper()
	var document struct {
		Paths map[string]map[string]yaml.Node
	}
	if err := yaml.Unmarshal(api.Document(contract), &document); err != nil {
		t.Fatal(err)
	}
	for path, methods := range document.Paths {
		if _, ok := document.Paths["/v1.6"+path]; ok || strings.HasPrefix(path, "/v1.3/") {
			continue
		}
		for method, node := range methods {
			if method == "parameters" { // of all methods
				continue
			}
			op := operation{method: strings.ToUpper(method), path: path}
			if err := node.Decode(&op); err != nil || op.ID == "" {
				t.Fatalf("%s %s: %v", method, path, err)
			}
			all = append(all, op)
		}
	}
	return all
}

var parameter = regexp.MustCompile(`\\\{[^}]*\\\}`)

func (o operation) is(r *http.Request) bool {
	path := parameter.ReplaceAllString(regexp.QuoteMeta(o.path), "[^/]+")
	return o.method == r.Method && regexp.MustCompile("^"+path+"$").MatchString(r.URL.EscapedPath())
}

// TestRoutes proves that the client has every operation of both documents, and none
// beside them.
func TestRoutes(t *testing.T) {
	for _, contract := range []string{"1.3", "1.6"} {
		operations := described(t, contract)
		if len(operations) < 45 {
			t.Fatalf("the document of %s has only %d operations", contract, len(operations))
		}
		missing := maps.Clone(routes)
		for _, op := range operations {
			id := op.ID[:strings.IndexAny(op.ID+"V", "V")] // without the dialect's suffix
			call := routes[id]
			if call == nil {
				t.Errorf("no call for %s: %s %s", op.ID, op.method, op.path)
				continue
			}
			delete(missing, id)
			synctest.Test(t, func(t *testing.T) {
				if sent := requestOf(t, call); !op.is(sent) {
					t.Errorf("%s sends %s %s, want %s %s", op.ID, sent.Method, sent.URL, op.method, op.path)
				}
			})
		}
		for id := range missing {
			t.Errorf("%s is not in the document of %s", id, contract)
		}
	}
}

var errSeen = errors.New("seen")

// requestOf is what a call sends.
func requestOf(t *testing.T, call func(context.Context, *client.Client) error) *http.Request {
	t.Helper()
	var sent []*http.Request
	h := &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
		sent = append(sent, r)
		return nil, errSeen
	})}
	once := client.Backoff{Attempts: 1}
	c, err := client.New("http://h", client.Options{HTTP: h, Retry: &client.Retry{Overload: once, Connection: once}})
	if err != nil {
		t.Fatal(err)
	}
	err = call(t.Context(), c)
	_ = c.Close() // what frees a reservation sends, too
	if !errors.Is(err, errSeen) || len(sent) == 0 {
		t.Fatalf("%v, sent %d requests", err, len(sent))
	}
	return sent[0]
}
