package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/select-service/select-service/internal/codec/yamlread"
	"github.com/select-service/select-service/internal/workers/kubernetes/mapping"
	"github.com/select-service/select-service/pkg/catalog"
)

// Kubernetes configures the discovery of workers. It is on with any source of pods.
type Kubernetes struct {
	Kubeconfig string // path; empty: the API server of the cluster that the process runs in
	// Named has the sources that flags and environment name, and the settings of all sources
	// that do not have their own.
	Named KubePool
	// Pools are further sources, each the given keys of a KubePool; see Entries.
	Pools []map[string]string
}

// KubePool are sources of pods with the same settings.
type KubePool struct {
	InferencePools []string
	PrefillPools   []string // whose pods have the role prefill
	Services       []string
	Selectors      []string

	// Entry has the settings; its Kind and Name are not used. An empty Namespace is that of the
	// process, the only role label "none" is none.
	mapping.Entry
}

// maxKubeSources bounds the sources.
const maxKubeSources = 64

// noLabel as the only role label reads the role from no label.
const noLabel = "none"

func defaultKubernetes() Kubernetes {
	return Kubernetes{Named: KubePool{Entry: mapping.Entry{
		Tenant: catalog.DefaultName, PortStride: 1, RoleLabels: []string{mapping.RoleLabelLLMD, mapping.RoleLabelDynamo},
		Scheme: "http", Ask: true, NotReadyGrace: mapping.DefaultGrace,
		Worker: catalog.Record{KVEvents: new(true)},
	}}}
}

// Enabled reports whether there is a source of pods.
func (k Kubernetes) Enabled() bool { return k.Named.sources() > 0 || len(k.Pools) > 0 }

func (p *KubePool) sources() int {
	return len(p.InferencePools) + len(p.PrefillPools) + len(p.Services) + len(p.Selectors)
}

// Entries returns the sources. home is the namespace of those that name none, "" if it is not
// known. Every fault is an error of its own.
func (k Kubernetes) Entries(home string) ([]mapping.Entry, error) {
	var all []mapping.Entry
	var faults []error
	add := func(where string, p *KubePool) {
		entries, err := p.entries(home)
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", where, err))
		}
		all = append(all, entries...)
	}
	if k.Named.sources() > 0 {
		add("kubernetes", &k.Named)
	}
	for i, given := range k.Pools {
		where := fmt.Sprintf("kubernetes.pools[%d]", i)
		p, err := k.pool(given)
		if err != nil {
			faults = append(faults, faultsOf(where, err)...)
			continue
		}
		if len(p.InferencePools) > 0 && given["target_ports"] != "" {
			faults = append(faults, fmt.Errorf("%s: %w", where, errOwnPorts))
		}
		if n := p.sources(); n != 1 {
			faults = append(faults, fmt.Errorf("%s: want exactly one of inference_pool, service and selector, it has %d", where, n))
			continue
		}
		add(where, p)
	}
	if len(k.Named.TargetPorts) > 0 && len(all) > 0 && !slices.ContainsFunc(all, func(e mapping.Entry) bool { return e.Kind != mapping.InferencePool }) {
		faults = append(faults, fmt.Errorf("kubernetes: %w", errOwnPorts))
	}
	if len(all) > maxKubeSources {
		faults = append(faults, fmt.Errorf("kubernetes: %d sources, the maximum is %d", len(all), maxKubeSources))
	}
	return all, errors.Join(faults...)
}

// pool returns an entry of Pools: what it gives, and else the settings of Named.
func (k Kubernetes) pool(given map[string]string) (*KubePool, error) {
	scratch := Config{Kubernetes: k}
	p := &scratch.Kubernetes.Named
	p.InferencePools, p.PrefillPools, p.Services, p.Selectors = nil, nil, nil, nil
	var faults []error
	byKey := optionsByKey()
	for _, key := range slices.Sorted(maps.Keys(given)) {
		text := given[key]
		bind := workerField(key)
		if o, is := byKey[kubernetesGroup+"."+key]; is && !slices.Contains(notOfPool, key) {
			bind = o.bind
		}
		switch {
		case bind == nil:
			faults = append(faults, fmt.Errorf("%s: %w", key, yamlread.ErrUnknownKey))
			continue
		case text == "" && key == "role_label":
			text = noLabel
		case text == "":
			continue
		}
		if err := bind(&scratch).set(text); err != nil {
			faults = append(faults, faultsOf(key, err)...)
		}
	}
	return p, errors.Join(faults...)
}

// errOwnPorts refuses target ports that no source takes.
var errOwnPorts = errors.New("target_ports: an InferencePool has its own")

func (p *KubePool) entries(home string) ([]mapping.Entry, error) {
	e := p.Entry
	e.Namespace = cmp.Or(e.Namespace, home)
	if slices.Equal(e.RoleLabels, []string{noLabel}) {
		e.RoleLabels = nil
	}
	var faults []error
	if e.Namespace == "" {
		faults = append(faults, errors.New("namespace: none is given, and this process is in no cluster"))
	}
	if len(p.Selectors) > 0 && len(e.TargetPorts) == 0 {
		faults = append(faults, errors.New("target_ports: a selector needs them"))
	}
	if n := len(e.TargetPorts); n > mapping.MaxTargetPorts {
		faults = append(faults, fmt.Errorf("target_ports: %d, the maximum is %d", n, mapping.MaxTargetPorts))
	}
	var all []mapping.Entry
	of := func(kind mapping.Kind, names []string, role *string) {
		for _, name := range names {
			one := e
			one.Kind, one.Name, one.Worker.Role = kind, name, cmp.Or(role, e.Worker.Role)
			if kind == mapping.InferencePool {
				one.TargetPorts = nil
			}
			all = append(all, one)
		}
	}
	of(mapping.InferencePool, p.InferencePools, nil)
	of(mapping.InferencePool, p.PrefillPools, new(catalog.RolePrefill))
	of(mapping.Service, p.Services, nil)
	of(mapping.Selector, p.Selectors, nil)
	return all, errors.Join(faults...)
}

// conflicts refuses sources that are not complete. Their namespace is checked where it is known.
func (k Kubernetes) conflicts() (found []conflict) {
	key := keyKubePools
	for _, named := range []struct {
		n   int
		key string
	}{
		{len(k.Named.Selectors), "selector"},
		{len(k.Named.Services), "service"},
		{len(k.Named.PrefillPools), "prefill_inference_pool"},
		{len(k.Named.InferencePools), "inference_pool"},
	} {
		if named.n > 0 {
			key = kubernetesGroup + "." + named.key
		}
	}
	_, err := k.Entries("-")
	var joined interface{ Unwrap() []error }
	if errors.As(err, &joined) {
		for _, fault := range joined.Unwrap() {
			found = append(found, conflict{key, nil, fault})
		}
	}
	return found
}

const (
	kubernetesGroup = "kubernetes"
	keyKubePools    = "kubernetes.pools"
)

// poolList is a list of mappings, in YAML.
func poolList(field *[]map[string]string) value {
	return typed[[]map[string]string]{
		field: field,
		parse: func(text string) ([]map[string]string, error) {
			root, err := yamlread.Root([]byte(text))
			if err != nil {
				return nil, err
			}
			if root == nil || root.Kind != yaml.SequenceNode {
				return nil, errPools
			}
			var r yamlread.Reader
			pools := make([]map[string]string, 0, len(root.Content))
			for path, node := range r.List("", root) {
				pool := make(map[string]string)
				for key, value := range r.Pairs(path, node) {
					text, err := scalarText(value)
					if err != nil {
						r.Fault(key.Path, key.Node, err)
					}
					pool[key.Name] = text
				}
				pools = append(pools, pool)
			}
			return pools, errors.Join(r.Faults()...)
		},
		render: func(pools []map[string]string) any {
			if pools == nil {
				return []map[string]string{}
			}
			return pools
		},
	}
}

var errPools = errors.New("want a list of mappings")

// workerField binds a field that all workers of a source may have, nil if none has the name. The number 0 is
// not given.
func workerField(name string) func(*Config) value {
	f := catalog.FieldNamed(name)
	if f == nil || !f.Pods {
		return nil
	}
	return func(c *Config) value {
		r := &c.Kubernetes.Named.Worker
		switch of := f.Of.(type) {
		case catalog.Pointer[string]:
			parse := func(text string) (string, error) { return text, nil }
			if f.Words != nil {
				parse = oneOf(f.Words...)
			}
			return typed[*string]{field: of(r), parse: pointerTo(parse), render: func(text *string) any {
				if text == nil {
					return nil
				}
				return *text
			}}
		case catalog.Pointer[bool]:
			return typed[*bool]{field: of(r), parse: pointerTo(parseBool), render: func(v *bool) any { return v != nil && *v }}
		case catalog.Pointer[uint32]:
			return given(of(r), uint32(cmp.Or(f.Most, math.MaxUint32)))
		case catalog.Pointer[uint64]:
			return given(of(r), math.MaxInt64)
		case catalog.Pointer[catalog.LoadMetrics]:
			return typed[*catalog.LoadMetrics]{field: of(r), parse: func(text string) (*catalog.LoadMetrics, error) {
				on, err := parseBool(text)
				if !on {
					return nil, err
				}
				return new(catalog.LoadMetrics), nil
			}, render: func(m *catalog.LoadMetrics) any { return m != nil }}
		case catalog.List:
			return list(of(r), func(text string) (string, error) { return text, nil })
		}
		panic("config: the field " + f.Name + " has no known kind")
	}
}

// given is a whole number up to high, or 0, which is unset.
func given[T ~uint32 | ~uint64](field **T, high T) value {
	return typed[*T]{
		field: field,
		parse: func(text string) (*T, error) {
			n, err := parseInteger(text, 0, high)
			if n == 0 {
				return nil, err
			}
			return &n, err
		},
		render: func(n *T) any {
			if n == nil {
				return T(0)
			}
			return *n
		},
	}
}

// pointerTo is parse for a field that is nil while it is unset.
func pointerTo[T any](parse func(string) (T, error)) func(string) (*T, error) {
	return func(text string) (*T, error) {
		v, err := parse(text)
		return &v, err
	}
}

// kubeName is a name of an object.
func kubeName(s string) (string, error) {
	for _, c := range s {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '.' {
			return "", fmt.Errorf("%q is not the name of an object", s)
		}
	}
	if len(s) > 253 {
		return "", fmt.Errorf("%q is too long", catalog.Clip(s))
	}
	return s, nil
}

// roleLabels are keys of labels, shown as one text.
func roleLabels(field *[]string) value {
	v := separated(field, ",", labelKey)
	v.render = func(items []string) any { return strings.Join(items, ",") }
	return v
}

// labelKey is the key of a label.
func labelKey(s string) (string, error) {
	if s == "" || len(s) > 317 || strings.ContainsAny(s, " =!,") {
		return "", fmt.Errorf("%q is not the key of a label", catalog.Clip(s))
	}
	return s, nil
}

func targetPort(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%q is not a port", s)
	}
	return uint16(n), nil
}

// selectors are label selectors, separated by semicolons: a selector has commas.
func selectors(field *[]string) value {
	v := separated(field, ";", func(s string) (string, error) {
		if _, err := mapping.ParseSelector(s); err != nil {
			return "", fmt.Errorf("%q is not a label selector: %w", catalog.Clip(s), err)
		}
		return s, nil
	})
	v.render = func(all []string) any { return strings.Join(all, ";") }
	return v
}

// eventsPort is a port of KV events. Its error says how pods without events are written, which others write as
// "none" or "false".
func eventsPort(field *uint16) value {
	return typed[uint16]{field: field, parse: func(text string) (uint16, error) {
		port, err := parseInteger[uint16](text, 0, math.MaxUint16)
		if err != nil {
			err = fmt.Errorf("%w; pods without KV events have kv_events: false", err)
		}
		return port, err
	}}
}

// notOfPool are the keys of the group that are for all sources, or name several: an entry of
// kubernetes.pools may have any other.
var notOfPool = []string{"prefill_inference_pool", "pools", "kubeconfig"}

var kubernetesSettings = []option{
	{
		key: "kubernetes.inference_pool", flag: "kube-inference-pool", also: []string{"DYN_EPP_INFERENCE_POOL_NAME"}, hint: "NAME", repeats: true,
		bind: func(c *Config) value { return list(&c.Kubernetes.Named.InferencePools, kubeName) },
		help: "An InferencePool (inference.networking.k8s.io/v1) whose pods are the workers. It may be given several " +
			"times. This option, --kube-service and --kube-selector switch discovery on: see docs/start/kubernetes.md.",
	},
	{
		key: "kubernetes.service", flag: "kube-service", hint: "NAME", repeats: true,
		bind: func(c *Config) value { return list(&c.Kubernetes.Named.Services, kubeName) },
		help: "A Service whose EndpointSlices have the workers, for clusters without InferencePools. It may be given " +
			"several times.",
	},
	{
		key: "kubernetes.selector", flag: "kube-selector", hint: "LABELS", repeats: true, separator: ";",
		bind: func(c *Config) value { return selectors(&c.Kubernetes.Named.Selectors) },
		help: "A label selector of the pods that are the workers, such as app=vllm,stage=live. It may be given several " +
			"times, or as several selectors separated by semicolons. It needs --kube-target-port.",
	},
	{
		key: "kubernetes.prefill_inference_pool", env: []string{"DYN_EPP_PREFILL_INFERENCE_POOL_NAME"}, hint: "NAME", repeats: true,
		bind: func(c *Config) value { return list(&c.Kubernetes.Named.PrefillPools, kubeName) },
		help: "InferencePools whose pods have the role prefill, whatever their labels say.",
	},
	{
		key: "kubernetes.pools", hint: "YAML",
		bind: func(c *Config) value { return poolList(&c.Kubernetes.Pools) },
		help: "Further sources with settings of their own. It is a list of mappings, such as {selector: \"app=sglang\", " +
			"target_ports: [30000], tenant: acme}. Each has one of inference_pool, service and selector, and any keys " +
			"of this group from namespace to not_ready_grace. The values of this group are their defaults.",
	},
	{
		key: "kubernetes.kubeconfig", flag: "kubeconfig", env: []string{"SELECT_SERVICE_KUBE_KUBECONFIG"}, hint: "FILE",
		bind: func(c *Config) value { return text(&c.Kubernetes.Kubeconfig) },
		help: "A kubeconfig with the API server and a token, tokenFile, client certificate or exec command for it. By " +
			"default the ServiceAccount of the pod is used. The variable KUBECONFIG is not read.",
	},
	{
		key: "kubernetes.namespace", flag: "kube-namespace", also: []string{"POD_NAMESPACE"}, hint: "NAME",
		bind: func(c *Config) value { return checkedText(&c.Kubernetes.Named.Namespace, kubeName) },
		help: "The namespace of the sources. By default it is that of the ServiceAccount.",
	},
	{
		key: "kubernetes.target_ports", flag: "kube-target-port", env: []string{"SELECT_SERVICE_KUBE_TARGET_PORTS"}, hint: "PORT", repeats: true,
		bind: func(c *Config) value { return list(&c.Kubernetes.Named.TargetPorts, targetPort) },
		help: "A port of the engines' HTTP servers; each is a worker. An InferencePool has its own. For a Service they " +
			"replace the ports of its slices.",
	},
	{
		key: "kubernetes.model", hint: "NAME",
		bind: func(c *Config) value { return text(&c.Kubernetes.Named.Model) },
		help: "The model of the pods. By default the engines are asked. With one source and DYN_MODEL_NAME it is that " +
			"model.",
	},
	{
		key: "kubernetes.tenant", hint: "NAME",
		bind: func(c *Config) value { return text(&c.Kubernetes.Named.Tenant) },
		help: "The tenant of the pods. They cannot choose it themselves.",
	},
	{
		key: "kubernetes.block_size", env: []string{"DYN_KV_CACHE_BLOCK_SIZE"}, hint: "N",
		bind: workerField("block_size"),
		help: "The block size in tokens. With 0 the engines are asked.",
	},
	{
		key: "kubernetes.total_kv_blocks", env: []string{"DYN_EPP_TOTAL_KV_BLOCKS"}, hint: "N",
		bind: workerField("total_kv_blocks"),
		help: "How many blocks each rank's cache has. With 0 the engines are asked.",
	},
	{
		key: "kubernetes.max_num_batched_tokens", env: []string{"DYN_EPP_MAX_NUM_BATCHED_TOKENS"}, hint: "N",
		bind: workerField("max_num_batched_tokens"),
		help: "How many tokens a step of the engines may compute, which the wait queue needs. 0 is not known.",
	},
	{
		key:  "kubernetes.kv_events",
		bind: workerField("kv_events"),
		help: "The engines publish KV events. Set it to false for embeddings, or for engines without prefix caching: the " +
			"pods then have no event streams, and nothing reports them as missing.",
	},
	{
		key: "kubernetes.kv_events_port", env: []string{"DYN_EPP_KV_EVENT_PORT"}, hint: "PORT",
		bind: func(c *Config) value { return eventsPort(&c.Kubernetes.Named.KVEventsPort) },
		help: "The port of the KV events of rank 0 in pods without a container port named kv-events. With 0 it is the " +
			"port that the engine tells, or 5557. Pods without KV events have kv_events: false.",
	},
	{
		key: "kubernetes.kv_replay_port", env: []string{"DYN_EPP_KV_EVENT_REPLAY_PORT"}, hint: "PORT",
		bind: func(c *Config) value { return integer(&c.Kubernetes.Named.KVReplayPort, 0, math.MaxUint16) },
		help: "The port of replays of rank 0 in pods without a container port named kv-replay. With 0 it is the port that " +
			"the engine tells, or there is none.",
	},
	{
		key: "kubernetes.kv_load_port", hint: "PORT",
		bind: func(c *Config) value { return integer(&c.Kubernetes.Named.KVLoadPort, 0, math.MaxUint16) },
		help: "The port of the load that SGLang publishes, of rank 0, in pods without a container port named kv-load. " +
			"With 0 it is the port that the engine tells, or there is none.",
	},
	{
		key:  "kubernetes.load_metrics",
		bind: workerField("load_metrics"),
		help: "The load of engines is read from /metrics at their target ports, as with load_metrics of a worker.",
	},
	{
		key: "kubernetes.port_stride", env: []string{"DYN_EPP_DATA_PARALLEL_STRIDE"}, hint: "N",
		bind: func(c *Config) value { return integer(&c.Kubernetes.Named.PortStride, 1, math.MaxUint16) },
		help: "The distance between the ports of neighbouring ranks.",
	},
	{
		key: "kubernetes.data_parallel_size", env: []string{"DYN_EPP_DATA_PARALLEL_SIZE"}, hint: "N",
		bind: workerField("data_parallel_size"),
		help: "How many data-parallel ranks are behind each target port. With 0 it is the number that the engine tells, " +
			"or 1.",
	},
	{
		key: "kubernetes.rank_header", hint: "local|global|none",
		bind: workerField("rank_header"),
		help: "How engines are told the rank of a request (local, global or none), as with rank_header of a worker.",
	},
	{
		key: "kubernetes.role_label", env: []string{"DYN_EPP_WORKER_ROLE_LABEL"}, hint: "LABEL,...",
		bind: func(c *Config) value { return roleLabels(&c.Kubernetes.Named.RoleLabels) },
		help: "Labels of pods that say their role. The first one that a pod has counts. none reads no label.",
	},
	{
		key: "kubernetes.role", hint: "prefill|decode",
		bind: workerField("role"),
		help: "The role of all pods (prefill or decode), whatever their labels say.",
	},
	{
		key: "kubernetes.scheme", hint: "http|https",
		bind: func(c *Config) value { return choice(&c.Kubernetes.Named.Scheme, "http", "https") },
		help: "The scheme of the engines' HTTP servers (http or https).",
	},
	{
		key:  "kubernetes.ask",
		bind: func(c *Config) value { return boolean(&c.Kubernetes.Named.Ask) },
		help: "The engines of ready pods are asked for the model, adapters, block size and blocks that nobody gives. If " +
			"this is false, model and block size must be given.",
	},
	{
		key: "kubernetes.not_ready_grace", hint: "DURATION",
		bind: func(c *Config) value { return delay.of(&c.Kubernetes.Named.NotReadyGrace) },
		help: "How long a pod that is not ready, or has left its source, keeps its blocks and bookings, without new " +
			"requests. 0 drops them at once, as Dynamo does.",
	},
}

// takeModelName makes DYN_MODEL_NAME the model of the only source.
func (l *loader) takeModelName() {
	k := &l.conf.Kubernetes
	if k.Named.sources()+len(k.Pools) != 1 || k.Named.Model != "" || l.source[keyGatewayModels] != "DYN_MODEL_NAME" || len(l.conf.Gateway.Models) != 1 {
		return
	}
	if _, sc, err := parseGatewayModel(l.conf.Gateway.Models[0]); err == nil {
		k.Named.Model = sc.Model
	}
}

// peerPort is the replica sync port if replicas are found in Kubernetes, as Dynamo's.
const peerPort = 9092

// takePeerPort gives replicas that are found in Kubernetes the port of the reservations.
func (l *loader) takePeerPort() {
	if r := &l.conf.Replicas; r.KubePeerService != "" && r.Publish() == "" {
		r.SyncPort = peerPort
	}
}
