package admission_test

import (
	"math"
	"strings"
	"testing"

	"github.com/select-service/select-service/internal/selection/admission"
)

// sample has two families over two buckets, an explicit class and a model of
// its own.
const sample = `
default_policy_family: standard
uncached_isl_buckets:
  - {min_tokens: 0, bucket: cached}
  - {min_tokens: 3072, bucket: uncached}
policy_classes:
  - {name: cached, policy_family: standard, cache_bucket: cached, quantum: 8}
  - {name: uncached, policy_family: standard, cache_bucket: uncached, quantum: 2, queue_policy: wspt,
     prefill_busy_threshold: 32768, prefill_busy_threshold_frac: 0.5}
  - {name: latency_cached, policy_family: latency, cache_bucket: cached, quantum: 9, prefill_busy_threshold: 100}
  - {name: latency_uncached, policy_family: latency, cache_bucket: uncached, quantum: 3, prefill_busy_threshold_frac: 0}
  - {name: custom, quantum: 1, request_queue_limit_per_worker: 7, raw_isl_token_queue_limit_per_worker: 8,
     cached_token_queue_limit_per_worker: 0}
models:
  large/model:
    default_policy_family: only
    uncached_isl_buckets: [{min_tokens: 0, bucket: all}]
    policy_classes: [{name: only, policy_family: only, cache_bucket: all, quantum: 1, queue_policy: fcfs}]
`

func parse(t testing.TB, text string) *admission.PolicyFile {
	t.Helper()
	file, err := admission.ParsePolicy([]byte(text))
	if err != nil {
		t.Fatalf("ParsePolicy: %v", err)
	}
	return file
}

func TestPolicyClass(t *testing.T) {
	config := admission.Config{File: parse(t, sample)}
	tests := []struct {
		model, header string
		uncached      uint64
		want          string
	}{
		{"m", "", 0, "cached"},
		{"m", "", 3071, "cached"},
		{"m", "", 3072, "uncached"},
		{"m", "", math.MaxUint64, "uncached"},
		{"m", "standard", 5, "cached"},
		{"m", "latency", 5, "latency_cached"},
		{"m", "latency", 5000, "latency_uncached"},
		{"m", "unknown", 5000, "uncached"},
		{"m", "cached", 5000, "uncached"}, // a matrix class is not chosen by name
		{"m", "custom", 5000, "custom"},
		{"m", "Custom", 0, "cached"},
		{"large/model", "custom", 5000, "only"},
		{"large/model", "", 0, "only"},
	}
	for _, tc := range tests {
		if got := config.ForModel(tc.model).Class(tc.header, tc.uncached).Name; got != tc.want {
			t.Errorf("model %s, header %q, %d uncached: class %s, want %s", tc.model, tc.header, tc.uncached, got, tc.want)
		}
	}
}

func TestParsePolicyValues(t *testing.T) {
	policy := admission.Config{File: parse(t, sample)}.ForModel("m")
	if c := policy.Class("", 0); c.Order != admission.FCFS || c.Quantum != 8 || c.BusyTokens != nil ||
		*c.BusyFraction != 16 || c.RequestLimit != nil || c.RawLimit != nil || c.CachedLimit != nil {
		t.Errorf("defaults: %+v", c)
	}
	if c := policy.Class("", 4000); c.Order != admission.WSPT || *c.BusyTokens != 32768 || *c.BusyFraction != 0.5 {
		t.Errorf("thresholds: %+v", c)
	}
	if c := policy.Class("latency", 0); c.BusyFraction != nil || *c.BusyTokens != 100 {
		t.Errorf("one threshold: %+v", c)
	}
	if c := policy.Class("custom", 0); *c.RequestLimit != 7 || *c.RawLimit != 8 || *c.CachedLimit != 0 {
		t.Errorf("limits: %+v", c)
	}
}

// TestParsePolicyForms: flow and block style, anchors, null for an absent key.
func TestParsePolicyForms(t *testing.T) {
	file := parse(t, `
models:
  a: &p
    default_policy_family: f
    uncached_isl_buckets: &b
      - min_tokens: 0
        bucket: s
    policy_classes:
      - name: c
        policy_family: f
        cache_bucket: s
        quantum: 0x10
        queue_policy:
        prefill_busy_threshold: ~
  b: *p
  c: {default_policy_family: f, uncached_isl_buckets: *b, policy_classes: [{name: d, policy_family: f, cache_bucket: s, quantum: 1}]}
`)
	config := admission.Config{File: file}
	if got := config.ForModel("b").Class("", 0); got.Name != "c" || got.Quantum != 16 || *got.BusyFraction != 16 {
		t.Errorf("class of b: %+v", got)
	}
	if got := config.ForModel("c").Class("", 0).Name; got != "d" {
		t.Errorf("class of c: %s", got)
	}
}

// profileOf is a valid file but for what is put in.
func profileOf(buckets, classes string) string {
	return "default_policy_family: f\nuncached_isl_buckets: [" + buckets + "]\npolicy_classes: [" + classes + "]\n"
}

func TestParsePolicyFaults(t *testing.T) {
	const (
		bucket = "{min_tokens: 0, bucket: s}"
		class  = "{name: c, policy_family: f, cache_bucket: s, quantum: 1}"
	)
	with := func(key string) string {
		return profileOf(bucket, "{name: c, policy_family: f, cache_bucket: s, quantum: 1, "+key+"}")
	}
	tests := map[string]struct {
		yaml string
		want []string // each in the error
	}{
		"empty":                   {"", []string{"neither policy_classes nor models"}},
		"comments only":           {"# nothing\n", []string{"neither policy_classes nor models"}},
		"null":                    {"~", []string{"must be a mapping"}},
		"empty models":            {"models: {}", []string{"neither policy_classes nor models"}},
		"not yaml":                {"a: [", []string{"read yaml"}},
		"two documents":           {profileOf(bucket, class) + "---\na: 1\n", []string{"more than one document"}},
		"broken second document":  {profileOf(bucket, class) + "---\n[", []string{"read yaml"}},
		"a list":                  {"[1]", []string{"must be a mapping"}},
		"unknown key":             {profileOf(bucket, class) + "router: {}\n", []string{"line 4: router: unknown key"}},
		"unknown bucket key":      {profileOf("{min_tokens: 0, bucket: s, max: 3}", class), []string{"uncached_isl_buckets[0].max: unknown key"}},
		"unknown class key":       {with("typo_limit: 3"), []string{"policy_classes[0].typo_limit: unknown key"}},
		"unknown model key":       {"models: {m: {classes: []}}", []string{"models.m.classes: unknown key", "models.m.policy_classes: must not be empty"}},
		"merge key":               {"<<: {a: 1}\n", []string{"<<: unknown key"}},
		"key given twice":         {profileOf(bucket, class) + "policy_classes: []\n", []string{"line 4: policy_classes: given twice"}},
		"key of a wrong kind":     {"[a]: 1\n", []string{"a key must be a text"}},
		"family alone":            {"default_policy_family: f", []string{"uncached_isl_buckets: must not be empty", "policy_classes: must not be empty", `no policy class has the family "f"`}},
		"classes alone":           {"policy_classes: [" + class + "]", []string{"default_policy_family: is required", "uncached_isl_buckets: must not be empty", `unknown bucket "s"`}},
		"models not a mapping":    {"models: 3", []string{"models: must be a mapping"}},
		"model without a name":    {"models: {'': {}}", []string{"must not be empty"}},
		"model is null":           {"models: {m: }", []string{"models.m: must be a mapping"}},
		"no buckets":              {profileOf("", class), []string{"uncached_isl_buckets: must not be empty"}},
		"buckets not a list":      {"default_policy_family: f\nuncached_isl_buckets: 3\npolicy_classes: 4\n", []string{"uncached_isl_buckets: must be a list", "policy_classes: must be a list"}},
		"bucket not a mapping":    {profileOf("3", class), []string{"uncached_isl_buckets[0]: must be a mapping"}},
		"bucket without floor":    {profileOf("{bucket: s}", class), []string{"uncached_isl_buckets[0].min_tokens: is required"}},
		"bucket without name":     {profileOf("{min_tokens: 0}", class), []string{"uncached_isl_buckets[0].bucket: is required"}},
		"first bucket not at 0":   {profileOf("{min_tokens: 1, bucket: s}", class), []string{"uncached_isl_buckets[0].min_tokens: must be 0"}},
		"buckets not rising":      {profileOf(bucket+", {min_tokens: 9, bucket: t}, {min_tokens: 9, bucket: u}", class), []string{"uncached_isl_buckets[2].min_tokens: must be above", `no class for family "f" and bucket "t"`}},
		"bucket twice":            {profileOf(bucket+", {min_tokens: 9, bucket: s}", class), []string{`uncached_isl_buckets[1].bucket: a second bucket "s"`}},
		"bucket name":             {profileOf("{min_tokens: 0, bucket: 'a b'}", class), []string{`"a b" must match`}},
		"floor not whole":         {profileOf("{min_tokens: 0.5, bucket: s}", class), []string{"uncached_isl_buckets[0].min_tokens: must be a whole number"}},
		"no classes":              {profileOf(bucket, ""), []string{"policy_classes: must not be empty"}},
		"class without name":      {profileOf(bucket, "{policy_family: f, cache_bucket: s, quantum: 1}"), []string{"policy_classes[0].name: is required"}},
		"class name":              {profileOf(bucket, "{name: a/b, policy_family: f, cache_bucket: s, quantum: 1}"), []string{`policy_classes[0].name: "a/b" must match`}},
		"empty class name":        {profileOf(bucket, "{name: '', policy_family: f, cache_bucket: s, quantum: 1}"), []string{"policy_classes[0].name"}},
		"class name not a text":   {profileOf(bucket, "{name: 3, policy_family: f, cache_bucket: s, quantum: 1}"), []string{"policy_classes[0].name: must be a text"}},
		"class twice":             {profileOf(bucket, class+", {name: c, quantum: 1}"), []string{`policy_classes[1]: a second policy class "c"`}},
		"no quantum":              {profileOf(bucket, "{name: c, policy_family: f, cache_bucket: s}"), []string{"policy_classes[0].quantum: is required"}},
		"quantum 0":               {profileOf(bucket, "{name: c, policy_family: f, cache_bucket: s, quantum: 0}"), []string{"policy_classes[0].quantum: must be a whole number, at least 1"}},
		"quantum negative":        {profileOf(bucket, "{name: c, policy_family: f, cache_bucket: s, quantum: -1}"), []string{"policy_classes[0].quantum: must be"}},
		"quantum a list":          {profileOf(bucket, "{name: c, policy_family: f, cache_bucket: s, quantum: [1]}"), []string{"policy_classes[0].quantum: must be"}},
		"quantum too large":       {profileOf(bucket, "{name: c, policy_family: f, cache_bucket: s, quantum: 18446744073709551616}"), []string{"policy_classes[0].quantum: must be"}},
		"lcfs":                    {with("queue_policy: lcfs"), []string{"policy_classes[0].queue_policy: must be fcfs or wspt"}},
		"empty order":             {with("queue_policy: ''"), []string{"policy_classes[0].queue_policy: must be"}},
		"threshold a fraction":    {with("prefill_busy_threshold: 0.5"), []string{"policy_classes[0].prefill_busy_threshold: must be a whole number"}},
		"threshold negative":      {with("prefill_busy_threshold: -1"), []string{"policy_classes[0].prefill_busy_threshold: must be"}},
		"fraction negative":       {with("prefill_busy_threshold_frac: -0.5"), []string{"prefill_busy_threshold_frac: must be a finite number"}},
		"fraction not a number":   {with("prefill_busy_threshold_frac: .nan"), []string{"prefill_busy_threshold_frac: must be a finite number"}},
		"fraction infinite":       {with("prefill_busy_threshold_frac: .inf"), []string{"prefill_busy_threshold_frac: must be a finite number"}},
		"fraction a text":         {with("prefill_busy_threshold_frac: '1'"), []string{"prefill_busy_threshold_frac: must be a finite number"}},
		"limit negative":          {with("request_queue_limit_per_worker: -1"), []string{"request_queue_limit_per_worker: must be"}},
		"limit a text":            {with("raw_isl_token_queue_limit_per_worker: many"), []string{"raw_isl_token_queue_limit_per_worker: must be"}},
		"limit a bool":            {with("cached_token_queue_limit_per_worker: true"), []string{"cached_token_queue_limit_per_worker: must be"}},
		"family without bucket":   {profileOf(bucket, class+", {name: d, policy_family: f, quantum: 1}"), []string{"policy_classes[1]: policy_family and cache_bucket"}},
		"bucket without family":   {profileOf(bucket, class+", {name: d, cache_bucket: s, quantum: 1}"), []string{"policy_classes[1]: policy_family and cache_bucket"}},
		"unknown bucket":          {profileOf(bucket, class+", {name: d, policy_family: f, cache_bucket: x, quantum: 1}"), []string{`policy_classes[1].cache_bucket: unknown bucket "x"`}},
		"pair twice":              {profileOf(bucket, class+", {name: d, policy_family: f, cache_bucket: s, quantum: 1}"), []string{`policy_classes[1]: a second class for family "f" and bucket "s"`}},
		"pair missing":            {profileOf(bucket+", {min_tokens: 9, bucket: t}", class), []string{`no class for family "f" and bucket "t"`}},
		"family name":             {profileOf(bucket, class+", {name: d, policy_family: 'g h', cache_bucket: s, quantum: 1}"), []string{`policy_classes[1].policy_family: "g h" must match`}},
		"explicit named a family": {profileOf(bucket, class+", {name: f, quantum: 1}"), []string{`the explicit class "f" has the name of a policy family`}},
		"no default family":       {"default_policy_family: x\nuncached_isl_buckets: [" + bucket + "]\npolicy_classes: [" + class + "]\n", []string{`default_policy_family: no policy class has the family "x"`}},
		"all at once": {
			profileOf("{min_tokens: 2, bucket: s}", "{name: c, policy_family: f, cache_bucket: s, quantum: x, queue_policy: y}") + "extra: 1\nmodels: {m: {default_policy_family: 1}}\n",
			[]string{"min_tokens: must be 0", "quantum: must be", "queue_policy: must be", "extra: unknown key", "models.m.default_policy_family: must be a text", "models.m.policy_classes: must not be empty"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := admission.ParsePolicy([]byte(tc.yaml))
			if err == nil {
				t.Fatalf("accepted:\n%s", tc.yaml)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error does not say %q:\n%v", want, err)
				}
			}
		})
	}
}

func TestForModel(t *testing.T) {
	threshold := 2.0
	modelOnly := parse(t, "models: {m: {"+strings.ReplaceAll(strings.TrimSpace(
		profileOf("{min_tokens: 0, bucket: s}", "{name: own, policy_family: f, cache_bucket: s, quantum: 1}")), "\n", ", ")+"}}")
	tests := map[string]struct {
		config  admission.Config
		enabled bool
		want    string // name of the class of model m, "" for no queue
		other   string // of another model
	}{
		"off":                        {admission.Config{}, false, "", ""},
		"threshold":                  {admission.Config{Threshold: &threshold}, true, "default", "default"},
		"file replaces threshold":    {admission.Config{Threshold: &threshold, File: parse(t, sample)}, true, "cached", "cached"},
		"file of single models":      {admission.Config{File: modelOnly}, true, "own", ""},
		"file of single models, too": {admission.Config{Threshold: &threshold, File: modelOnly}, true, "own", "default"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tc.config.Enabled(); got != tc.enabled {
				t.Errorf("Enabled = %v, want %v", got, tc.enabled)
			}
			for model, want := range map[string]string{"m": tc.want, "other": tc.other} {
				policy, got := tc.config.ForModel(model), ""
				if policy != nil {
					got = policy.Class("", 0).Name
				}
				if got != want {
					t.Errorf("class of %s = %q, want %q", model, got, want)
				}
			}
		})
	}
}

func TestBusy(t *testing.T) {
	tests := map[string]struct {
		tokens           *uint64
		fraction         *float64
		prefill, batched uint64
		want             bool
	}{
		"at the fraction":         {nil, new(1.0), 8, 8, false},
		"above the fraction":      {nil, new(1.0), 9, 8, true},
		"fraction 0, idle":        {nil, new(0.0), 0, 8, false},
		"fraction 0, loaded":      {nil, new(0.0), 1, 8, true},
		"unknown capacity, below": {nil, new(1.0), 10_000_000, 0, false},
		"unknown capacity, above": {nil, new(1.0), 10_000_001, 0, true},
		"at the tokens":           {new(uint64(100)), nil, 100, 8, false},
		"above the tokens":        {new(uint64(100)), nil, 101, 8, true},
		"either, tokens":          {new(uint64(10)), new(0.5), 11, 10_000_000, true},
		"either, fraction":        {new(uint64(10)), new(0.5), 6, 10, true},
		"either, none":            {new(uint64(10)), new(0.5), 5, 10, false},
		"neither":                 {nil, nil, math.MaxUint64, 1, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			class := admission.Class{BusyTokens: tc.tokens, BusyFraction: tc.fraction}
			if got := class.Busy(tc.prefill, tc.batched); got != tc.want {
				t.Errorf("Busy = %v, want %v", got, tc.want)
			}
		})
	}
}

// FuzzParsePolicy: no input panics, and a policy that is accepted has a class
// for every request and serves it.
func FuzzParsePolicy(f *testing.F) {
	f.Add([]byte(sample))
	f.Add([]byte(profileOf("{min_tokens: 0, bucket: s}", "{name: c, policy_family: f, cache_bucket: s, quantum: 1}")))
	f.Add([]byte("models: &a {m: *a}"))
	f.Add([]byte("a: &a [*a]\n<<: *a\n---\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := admission.ParsePolicy(data)
		if err != nil {
			return
		}
		policy := admission.Config{File: file}.ForModel("m")
		if policy == nil {
			return // single models only
		}
		q := admission.NewQueue(policy)
		for _, uncached := range []uint64{0, 1, 1 << 20, math.MaxUint64} {
			for _, header := range []string{"", "f", "c"} {
				w := &admission.Waiter{ClassHeader: header, Tokens: math.MaxUint64, Uncached: uncached}
				if q.Add(w, 1) != nil {
					continue
				}
				if got := q.Next(0, func(*admission.Waiter) bool { return true }); got != w {
					t.Fatalf("Next = %v", got)
				}
			}
		}
	})
}
