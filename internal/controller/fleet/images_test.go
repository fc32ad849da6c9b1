package fleet

import (
	"os"
	"strings"
	"testing"
)

// docs/security.md names the default images.
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
