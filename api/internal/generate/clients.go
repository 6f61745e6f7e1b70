package main

import (
	"fmt"
	"go/format"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/select-service/select-service/pkg/catalog"
)

// clients are the files with types of the clients, relative to the folder of the source, and what makes the
// members of their types of workers those of catalog.Fields.
var clients = map[string]func(text string) (string, error){
	"../pkg/client/types.go": func(text string) (string, error) {
		text, err := withMembers(text, "type Worker struct {\n", "\n}\n", goMember, goField)
		if err != nil {
			return "", err
		}
		formatted, err := format.Source([]byte(text))
		return string(formatted), err
	},
	"../clients/python/src/select_service_client/_types.py": func(text string) (string, error) {
		text, err := withMembers(text, "class WorkerSettings(TypedDict, total=False):\n", "\n\n\n", pythonMember, pythonSetting)
		if err != nil {
			return "", err
		}
		return withMembers(text, "class Worker(TypedDict, total=False):\n", "\n\n\n", pythonMember, pythonShown)
	},
}

var (
	goMember     = regexp.MustCompile("^\t[A-Z].*`json:\"(\\w+)")
	pythonMember = regexp.MustCompile(`^    (\w+): `)
)

// withMembers returns a text in which a type, from begin to end, has the fields as its members, each as declared
// says, "" for those that the type does not have. A field stays where it is; a new one comes behind the one before
// it in the table. member finds the name in the line of a member. Lines of comments above it belong to it.
func withMembers(text, begin, end string, member *regexp.Regexp, declared func(*catalog.Field) string) (string, error) {
	before, rest, found := strings.Cut(text, begin)
	body, after, ends := strings.Cut(rest, end)
	if !found || !ends {
		return "", fmt.Errorf("there is no %q", begin)
	}
	type item struct{ name, text string }
	var items []item
	var comment string
	for line := range strings.SplitSeq(body, "\n") {
		switch m := member.FindStringSubmatch(line); {
		case m != nil:
			items = append(items, item{m[1], comment + line + "\n"})
			comment = ""
		case strings.HasPrefix(strings.TrimSpace(line), "//"):
			comment += line + "\n"
		default:
			items = append(items, item{"", comment + line + "\n"})
			comment = ""
		}
	}
	last := -1
	for _, f := range catalog.Fields() {
		now := declared(&f)
		if now == "" {
			continue
		}
		at := slices.IndexFunc(items, func(i item) bool { return i.name == f.Name })
		if at < 0 {
			at = last + 1
			items = slices.Insert(items, at, item{name: f.Name})
		}
		items[at].text = now
		last = at
	}
	var b strings.Builder
	for _, i := range items {
		b.WriteString(i.text)
	}
	return before + begin + strings.TrimSuffix(b.String(), "\n") + end + after, nil
}

// goNames are the fields of the Go client that a record calls otherwise.
var goNames = map[string]string{"IsEagle": "Eagle", "Aliases": "ModelAliases"}

// goField returns the field of the Go client with its comment.
func goField(f *catalog.Field) string {
	kind, omit := strings.ReplaceAll(reflect.TypeOf(f.Of.Variable(new(catalog.Record))).Elem().String(), "catalog.", ""), "omitempty"
	if collectionOf(f) != nil && !f.EngineOnly {
		omit = "omitzero" // an empty list or map is one that is given
	}
	name := recordField(f)
	if other := goNames[name]; other != "" {
		name = other
	}
	comment := "\t// " + strings.ReplaceAll(wrap(f.Doc), "\n", "\n\t// ")
	return fmt.Sprintf("%s\n\t%s %s `json:\"%s,%s\"`\n", comment, name, kind, f.Name, omit)
}

// recordField returns the name of the field in a record.
func recordField(f *catalog.Field) string {
	var r catalog.Record
	v := reflect.ValueOf(&r).Elem()
	for i := range v.NumField() {
		if v.Field(i).Addr().Interface() == f.Of.Variable(&r) {
			return v.Type().Field(i).Name
		}
	}
	panic("no field of a record is " + f.Name)
}

// pythonSetting returns the member of a registration or patch; "": the engine alone says it.
func pythonSetting(f *catalog.Field) string {
	kind := pythonKind(f, "Mapping", "Iterable[str]")
	if _, byRank := f.Of.(catalog.Map[uint32]); byRank {
		kind = "Mapping[int, str] | Mapping[str, str]"
	}
	if f.EngineOnly {
		return ""
	}
	return fmt.Sprintf("    %s: %s | None\n", f.Name, kind)
}

// pythonShown returns the member of an answer.
func pythonShown(f *catalog.Field) string {
	kind := pythonKind(f, "dict", "list[str]")
	if f.Dynamo && collectionOf(f) == nil {
		if f.Words != nil {
			kind = "str" // Dynamo takes any text
		}
		kind += " | None"
	}
	return fmt.Sprintf("    %s: %s\n", f.Name, kind)
}

func pythonKind(f *catalog.Field, mapping, list string) string {
	switch f.Of.(type) {
	case catalog.Pointer[string]:
		if f.Words != nil {
			return `Literal["` + strings.Join(f.Words, `", "`) + `"]`
		}
		return "str"
	case catalog.Pointer[bool]:
		return "bool"
	case catalog.Pointer[float32]:
		return "float"
	case catalog.Pointer[catalog.LoadMetrics]:
		return "LoadMetrics"
	case catalog.List:
		return list
	case catalog.Map[uint32], catalog.Map[string]:
		return mapping + "[str, str]"
	}
	return "int"
}
