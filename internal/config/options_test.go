package config

import (
	"reflect"
	"slices"
	"testing"
)

// TestEveryFieldHasOneKey proves that no field of Config is left without a key
// of the file, and that none has two.
func TestEveryFieldHasOneKey(t *testing.T) {
	conf := Default()
	bound := make(map[any]string)
	for _, o := range options {
		if o.key == "" {
			continue
		}
		field := o.bind(&conf).pointer()
		if other, ok := bound[field]; ok {
			t.Errorf("%s and %s set the same field", other, o.key)
		}
		bound[field] = o.key
	}
	exempt := []string{"Action", "SlotsOnly", "Config.Queue.Config.File", "Policies", "PrefixOnly", "notes", "policyText", "Kind", "Name", "Worker"}
	var walk func(path string, v reflect.Value)
	walk = func(path string, v reflect.Value) {
		for i := range v.NumField() {
			name := v.Type().Field(i).Name
			if slices.Contains(exempt, name) || slices.Contains(exempt, path+"."+name) {
				continue
			}
			if f := v.Field(i); f.Kind() == reflect.Struct {
				walk(path+"."+name, f)
			} else if bound[f.Addr().Interface()] == "" {
				t.Errorf("%s.%s has no key", path, name)
			}
		}
	}
	walk("Config", reflect.ValueOf(&conf).Elem())
}

// TestOptionTable proves that names are unique and that an option is either
// complete or environment only.
func TestOptionTable(t *testing.T) {
	seen := make(map[string]bool)
	for _, o := range options {
		names := slices.Clone(o.env)
		for _, name := range []string{o.key, "--" + o.flag} {
			if name != "" && name != "--" {
				names = append(names, name)
			}
		}
		for _, name := range names {
			if seen[name] || name == "--" {
				t.Errorf("name %q is given twice or empty", name)
			}
			seen[name] = true
		}
		if len(names) == 0 || o.help == "" || o.flag != "" && (o.key == "" || len(o.env) == 0) {
			t.Errorf("option %v lacks a name or its help", names)
		}
	}
	if got := len(optionsByKey()); got != countInGroups() {
		t.Errorf("%d keys, %d of them in a group", got, countInGroups())
	}
}

func countInGroups() (n int) {
	for _, g := range groups {
		n += len(inGroup(g.name))
	}
	return n
}
