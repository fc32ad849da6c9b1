package page_test

import (
	"testing"

	"skyserve/internal/page"
)

func TestValuesAreEscapedAndMarkupIsNot(t *testing.T) {
	var p page.Page
	p.Put(`<a title="{}">{}</a>`, `"><script>`, "1 < 2 & 3")
	p.PutIf(false, "never {}", 1)
	p.PutIf(true, "<b>{}</b>", 2.5)
	want := `<a title="&#34;&gt;&lt;script&gt;">1 &lt; 2 &amp; 3</a><b>2.5</b>`
	if got := p.String(); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestAPlaceWithoutAValueIsAMistakeOfTheCaller(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("it went unnoticed")
		}
	}()
	var p page.Page
	p.Put("{} {}", 1)
}
