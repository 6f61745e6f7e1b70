// Package scopes is the registry of what each scope (a model of a tenant) has besides its
// workers in the catalog: its index and its wait queue. Requests read it without locks. Only
// the catalog's reconciler creates and ends states.
package scopes
