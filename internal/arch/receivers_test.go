package arch_test

import (
	"go/ast"
	"strings"
	"testing"
	"unicode"
)

// TestReceivers proves that every receiver begins with the initial of a word of its type's name, so that a
// type that is renamed takes its receivers along; a list may also be "all". That a type's methods agree is a rule of golangci.
func TestReceivers(t *testing.T) {
	for _, s := range sources(t) {
		for _, decl := range s.ast.Decls {
			method, ok := decl.(*ast.FuncDecl)
			if !ok || method.Recv == nil || len(method.Recv.List[0].Names) == 0 {
				continue
			}
			receiver, name := method.Recv.List[0].Names[0].Name, typeName(method.Recv.List[0].Type)
			if receiver != "_" && receiver != "all" && !strings.Contains(initials(name), receiver[:1]) {
				t.Errorf("%s: the receiver %s of %s begins with none of %q", s.pos.Position(method.Pos()), receiver, name, initials(name))
			}
		}
	}
}

// typeName returns the name of a receiver's type.
func typeName(expr ast.Expr) string {
	switch x := expr.(type) {
	case *ast.StarExpr:
		return typeName(x.X)
	case *ast.IndexExpr:
		return typeName(x.X)
	case *ast.IndexListExpr:
		return typeName(x.X)
	}
	return expr.(*ast.Ident).Name
}

// initials returns the first letters, in lower case, of the words of a name in camel case: "pt" of
// PredictedTTFT.
func initials(name string) string {
	out := strings.ToLower(name[:1])
	for i := 1; i < len(name); i++ {
		capital := unicode.IsUpper(rune(name[i]))
		if capital && (!unicode.IsUpper(rune(name[i-1])) || i+1 < len(name) && unicode.IsLower(rune(name[i+1]))) {
			out += strings.ToLower(name[i : i+1])
		}
	}
	return out
}
