package admin

import (
	"slices"
	"strings"
	"testing"

	"skyserve/internal/testkit"
)

// docs/openapi-admin.yaml describes every route of the admin port, and no other.
func TestAdminRoutesAreInOpenAPI(t *testing.T) {
	var served []string
	for _, r := range New(Options{}).routes() {
		served = append(served, strings.ReplaceAll(r.pattern, "...}", "}"))
	}
	documented := testkit.DocumentedRoutes(t, "../../docs/openapi-admin.yaml")
	for _, route := range served {
		if !slices.Contains(documented, route) {
			t.Errorf("%s is missing", route)
		}
	}
	for _, route := range documented {
		if !slices.Contains(served, route) {
			t.Errorf("%s is not served", route)
		}
	}
}
