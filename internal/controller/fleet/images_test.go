package fleet

import (
	"os"
	"strings"
	"testing"
)

// The guide to security tells which releases of engines run by default, and why.
func TestDefaultImagesAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, image := range []string{imageVLLM, imageSGLang} {
		if !strings.Contains(string(text), "`"+image+"`") {
			t.Errorf("docs/security.md does not name %s", image)
		}
	}
}
