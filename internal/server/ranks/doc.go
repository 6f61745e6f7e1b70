// Package ranks shows the ranks of all workers to operators: how they are now ([View]), how they
// were in the last hour ([History]), and which prefixes they have cached ([Prefixes]). It only
// reads what other packages keep.
package ranks
