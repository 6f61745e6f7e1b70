// Package packages tests what make release has made, as those who install it do:
// SELECT_SERVICE_DIST is its folder; without it the tests are left out.
package packages
