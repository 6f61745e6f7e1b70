package config

import (
	"errors"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/select-service/select-service/internal/codec/yamlread"
	"github.com/select-service/select-service/internal/selection/admission"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/policies"
	"github.com/select-service/select-service/pkg/selector"
)

// The sections of a policy file that are not about queues.
const (
	sectionRouter     = "router"
	sectionSelection  = "worker_selection"
	sectionClassifier = "request_classifier"
)

// The text of dynamo-kv-router 1.6.1.
var errClassifier = errors.New("standalone selection does not support request_classifier plugins")

// routerSettings maps settings of the section router to options. Other settings of the
// section have no effect.
var routerSettings = map[string]string{
	"host_cache_hit_weight":           "router.host_cache_hit_weight",
	"disk_cache_hit_weight":           "router.disk_cache_hit_weight",
	"use_kv_events":                   keyEvents,
	"router_track_prefill_tokens":     "router.track_prefill_tokens",
	"router_ttl_secs":                 keyApproximate,
	"router_predicted_ttl_secs":       keyPredicted,
	"router_approximate_cache_policy": keyCachePolicy,
	"router_event_threads":            "kv_events.threads",
}

// readPolicy reads the policy file at the start, so that faults are reported then and not at
// the first request (decision D13).
func (l *loader) readPolicy() {
	path := l.conf.Queue.PolicyFile
	if path == "" {
		return
	}
	name := l.source[keyPolicy]
	content, err := l.readFile(path)
	if err != nil {
		l.faults = append(l.faults, fmt.Errorf("%s: read policy file: %w", name, err))
		return
	}
	file := name + ": policy file " + path
	root, err := yamlread.Root(content)
	if err != nil {
		l.faults = append(l.faults, fmt.Errorf("%s: read yaml: %w", file, err))
		return
	}
	var all any
	if root != nil && root.Decode(&all) == nil { // faults are found below
		l.conf.policyText = fmt.Sprint(all) // maps are written in the order of their keys
	}
	rest, sections := splitSections(root)
	failed := func(err error) bool {
		if err != nil {
			l.faults = append(l.faults, faultsOf(file, err)...)
		}
		return err != nil
	}
	if sections[sectionClassifier] != nil {
		failed(errClassifier)
	}
	if n := sections[sectionRouter]; n != nil {
		settings, err := policies.ParseRouter(n)
		if !failed(err) {
			l.applyRouter(file, settings)
		}
	}
	if n := sections[sectionSelection]; n != nil {
		l.selection, err = policies.ParseSection(n)
		l.badSelection = failed(err)
	}
	if len(sections) > 0 && len(rest.Content) == 0 {
		return // nothing about queues
	}
	policy, err := admission.ReadPolicy(rest)
	if !failed(err) {
		l.conf.Queue.File = policy
	}
}

// splitSections removes the sections that are not about queues from a policy file and returns
// them. A null section counts as absent.
func splitSections(root *yaml.Node) (rest *yaml.Node, sections map[string]*yaml.Node) {
	if root == nil || root.Kind != yaml.MappingNode {
		return root, nil
	}
	taken := *root
	taken.Content = nil
	sections = map[string]*yaml.Node{}
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		if value.Kind == yaml.AliasNode {
			value = value.Alias
		}
		switch key.Value {
		case sectionRouter, sectionSelection, sectionClassifier:
			if sections[key.Value] == nil {
				if !yamlread.IsNull(value) {
					sections[key.Value] = value
				}
				continue
			}
		}
		taken.Content = append(taken.Content, root.Content[i], root.Content[i+1])
	}
	return &taken, sections
}

// applyRouter sets the options that the section router of the policy file gives. It
// overrides all other sources.
func (l *loader) applyRouter(file string, settings []policies.Setting) {
	byKey := optionsByKey()
	for _, s := range settings {
		name := file + ": " + sectionRouter + "." + s.Name
		if o, known := byKey[routerSettings[s.Name]]; known {
			l.apply(o, name, s.Text)
		} else {
			l.note("%s has no effect in this service", name)
		}
	}
}

// Weights returns the weights of choices, by the rules of the service's contract.
func (c *Config) Weights() selector.Weights {
	w := c.Router
	if w.PrefixOnly = c.Server.Contract == contract.V16; !w.PrefixOnly {
		w.ActiveRequests = 0 // a term of 1.6
	}
	return w
}

// costWeights are the options with weights of Dynamo's cost. An operator who sets one of them wants that cost.
var costWeights = []string{
	"router.kv_overlap_score_credit", "router.kv_overlap_score_credit_decay", "router.prefill_load_scale",
	"router.host_cache_hit_weight", "router.disk_cache_hit_weight", keyActiveRequests, "router.temperature",
}

// givenWeight returns the name under which a weight of Dynamo's cost was given, "": none was. Settings of a
// policy file's section router do not count: it is called before that is read.
func (l *loader) givenWeight() string {
	for _, key := range costWeights {
		if name := l.source[key]; name != "" {
			return name
		}
	}
	return ""
}

// resolvePolicies creates the configured policies. They use the service's weights unless
// they have their own. weight names a given weight of Dynamo's cost.
func (l *loader) resolvePolicies(weight string) {
	if l.badSelection {
		return
	}
	w := &l.conf.WorkerSelection
	w.Name = strings.TrimSpace(w.Name)
	if l.selection != nil {
		for _, warning := range l.selection.Warnings(w.Name) {
			l.note("%s", warning)
		}
	}
	if w.Type != "" {
		for name, decides := range map[string]bool{
			l.source[keySelection]: w.Name != "",
			l.source[keyPolicy] + ": policy file " + l.conf.Queue.PolicyFile: l.selection.Names(),
		} {
			if decides {
				l.faults = append(l.faults, fmt.Errorf("%s: %s names a policy already, leave one of them out", l.source[keyPolicyType], name))
				return
			}
		}
	}
	var err error
	w.Policies, err = l.selection.Resolve(policies.Settings{
		Name: w.Name, Type: w.Type, Weights: l.conf.Weights(), Served: l.conf.Serves(), Weight: weight,
	})
	if err != nil {
		name := l.source[keySelection]
		if !errors.Is(err, policies.ErrUnknownInstance) {
			name = l.source[keyPolicy] + ": policy file " + l.conf.Queue.PolicyFile
		}
		l.faults = append(l.faults, fmt.Errorf("%s: %w", name, err))
	}
}
