package tui

import (
	"fmt"
	"image/color"
	"math"
	"strings"
	"testing"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"
)

// luminance is the relative luminance of WCAG 2.2.
func luminance(c color.Color) float64 {
	r, g, b, _ := c.RGBA()
	channel := func(v uint32) float64 {
		x := float64(v) / 0xffff
		if x <= 0.04045 {
			return x / 12.92
		}
		return math.Pow((x+0.055)/1.055, 2.4)
	}
	return 0.2126*channel(r) + 0.7152*channel(g) + 0.0722*channel(b)
}

func contrast(a, b string) float64 {
	x, y := luminance(lipgloss.Color(a)), luminance(lipgloss.Color(b))
	return (max(x, y) + 0.05) / (min(x, y) + 0.05)
}

func TestColourContrast(t *testing.T) {
	tests := []struct {
		name       string
		p          palette
		background []string
	}{
		{"dark", darkPalette, []string{"#000000", "#1e1e1e", "#282c34"}},
		{"light", lightPalette, []string{"#ffffff", "#fdf6e3", "#eeeeee"}},
		{"colour-blind", blindPalette, []string{"#000000", "#1e1e1e", "#282c34"}},
		{"colour-blind-light", blindLightPalette, []string{"#ffffff", "#fdf6e3", "#eeeeee"}},
	}
	for _, tt := range tests {
		pairs := [][2]string{{tt.p.selectedText, tt.p.selected}, {tt.p.alarmText, tt.p.bad}}
		for _, bg := range tt.background {
			for _, fg := range []string{tt.p.accent, tt.p.muted, tt.p.good, tt.p.warn, tt.p.bad} {
				pairs = append(pairs, [2]string{fg, bg})
			}
		}
		for _, p := range pairs {
			if c := contrast(p[0], p[1]); c < 4.5 {
				t.Errorf("%s: %s on %s has contrast %.1f, want 4.5", tt.name, p[0], p[1], c)
			}
		}
	}
}

// blindness converts linear red, green and blue to the colour that an eye without one kind
// of cone perceives (Machado, Oliveira and Fernandes 2009, severity 1).
var blindness = map[string][3][3]float64{
	"protanopia":   {{0.152286, 1.052583, -0.204868}, {0.114503, 0.786281, 0.099216}, {-0.003882, -0.048116, 1.051998}},
	"deuteranopia": {{0.367322, 0.860646, -0.227968}, {0.280085, 0.672501, 0.047413}, {-0.011820, 0.042940, 0.968881}},
	"tritanopia":   {{1.255528, -0.076749, -0.178779}, {-0.078411, 0.930809, 0.147602}, {0.004733, 0.691367, 0.303900}},
}

// seen is a colour as perceived by such an eye, in sRGB of 0 to 255.
func seen(hex string, m [3][3]float64) (rgb [3]float64) {
	r, g, b, _ := lipgloss.Color(hex).RGBA()
	linear := [3]float64{}
	for i, c := range []uint32{r, g, b} {
		linear[i] = math.Pow(float64(c)/0xffff, 2.2)
	}
	for i, row := range m {
		sum := row[0]*linear[0] + row[1]*linear[1] + row[2]*linear[2]
		rgb[i] = 255 * math.Pow(min(max(sum, 0), 1), 1/2.2)
	}
	return rgb
}

// Good, warn and bad are distinguishable with any colour vision in the themes for it.
func TestColourBlindThemesDistinguishStates(t *testing.T) {
	const apart = 50 // of 441; red and green of the dark theme are 27 for a deuteranope
	for name, p := range map[string]palette{ThemeBlind: blindPalette, ThemeBlindLight: blindLightPalette} {
		for kind, m := range blindness {
			for _, pair := range [][2]string{{p.good, p.bad}, {p.good, p.warn}, {p.warn, p.bad}} {
				a, b := seen(pair[0], m), seen(pair[1], m)
				if d := math.Hypot(math.Hypot(a[0]-b[0], a[1]-b[1]), a[2]-b[2]); d < apart {
					t.Errorf("%s, %s: %s and %s are %.0f apart, want %d", name, kind, pair[0], pair[1], d, apart)
				}
			}
		}
	}
}

func TestThemesUseOnlyTheirColours(t *testing.T) {
	for _, name := range append(ThemeNames(), ThemePlain) {
		th, err := NewTheme(name, false)
		if err != nil || th.Name != name {
			t.Fatalf("%s: got %q, %v", name, th.Name, err)
		}
		frame := Render(normal(), nil, 120, 40, th)
		if coloured, want := hasColour(frame), name != ThemeMono && name != ThemePlain; coloured != want {
			t.Errorf("%s: coloured %t, want %t", name, coloured, want)
		}
		if escaped, want := strings.Contains(frame, "\x1b"), name != ThemePlain; escaped != want {
			t.Errorf("%s: has escapes %t, want %t", name, escaped, want)
		}
	}
	if th := mustTheme(NewTheme(ThemeDark, true)).Plain(); th.Name != ThemePlain || !th.glyphs.ascii {
		t.Errorf("plain must keep the glyphs and remove the escapes, got %+v", th)
	}
	if _, err := NewTheme("pink", false); err == nil || !strings.Contains(err.Error(), "high-contrast") {
		t.Errorf("an unknown theme: got %v, want an error that lists them", err)
	}
}

// hasColour reports whether a text contains an escape code that sets a colour.
func hasColour(frame string) bool {
	for _, e := range strings.Split(frame, "\x1b[")[1:] {
		codes, _, _ := strings.Cut(e, "m")
		for _, c := range strings.Split(codes, ";") {
			if len(c) == 2 && (c[0] == '3' || c[0] == '4') {
				return true
			}
		}
	}
	return false
}

func TestEveryStateHasASymbol(t *testing.T) {
	for _, ascii := range []bool{false, true} {
		th := mustTheme(NewTheme(ThemeMono, ascii))
		for state := range stateRank {
			sign, _ := th.glyphs.replicaMark(state)
			if sign == "?" || width(sign) != 1 {
				t.Errorf("%s: sign %q", state, sign)
			}
		}
		if sign, _ := th.glyphs.replicaMark("NEW_STATE"); sign != "?" {
			t.Errorf("an unknown state: symbol %q", sign)
		}
	}
}

// Choosing the theme auto detects the background, as it does at the start.
func TestChoosingAutoDetectsTheBackground(t *testing.T) {
	d := deskIn(t, 120, 40, normal())
	for _, keys := range [][]string{{"t"}, {":", "theme auto", "enter"}} {
		d.model.screen.theme = mustTheme(NewTheme(ThemeMono, false)) // the last one before auto
		cmd := d.press(keys...)
		if cmd == nil || fmt.Sprintf("%T", cmd()) != fmt.Sprintf("%T", tea.RequestBackgroundColor()) {
			t.Errorf("%v does not ask for the background", keys)
		}
	}
	if cmd := d.press("t"); cmd != nil {
		t.Error("a theme other than auto asks for the background")
	}
}
