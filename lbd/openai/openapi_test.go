package openai

import (
	"slices"
	"testing"

	"skyserve/internal/testkit"
)

// docs/openapi.yaml describes every endpoint of engines.
func TestEndpointsAreInOpenAPI(t *testing.T) {
	documented := testkit.DocumentedRoutes(t, "../../docs/openapi.yaml")
	for path, e := range endpoints {
		if route := e.Method() + " " + path; !slices.Contains(documented, route) {
			t.Errorf("%s is missing", route)
		}
	}
}
