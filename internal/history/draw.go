package main

import (
	"bytes"
	"image/color"
	"math"
	"os"
	"regexp"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Colors that are readable on white and on black. The background is transparent.
var (
	ink  = color.RGBA{R: 0x80, G: 0x88, B: 0x90, A: 0xff}
	line = color.RGBA{R: 0x2f, G: 0x81, B: 0xd7, A: 0xff}
	drag = color.RGBA{R: 0xe0, G: 0x7b, B: 0x39, A: 0xff}
)

const (
	panelsAcross = 2
	columns      = 250 // of a panel, for each of which its least and its greatest value are drawn
)

var families = regexp.MustCompile(`font-family:[^;"]*;font-variant:normal`)

// draw draws all quantities against time, each in a panel of its own with its trend.
func (s *series) draw(file string) error {
	var panels [][]*plot.Plot
	for i := range quantities {
		if i%panelsAcross == 0 {
			panels = append(panels, nil)
		}
		p, err := s.panel(i)
		if err != nil {
			return err
		}
		panels[len(panels)-1] = append(panels[len(panels)-1], p)
	}
	canvas := vgsvg.New(panelsAcross*12*vg.Centimeter, vg.Length(len(panels))*4*vg.Centimeter)
	tiles := draw.Tiles{Rows: len(panels), Cols: panelsAcross, PadX: 4 * vg.Millimeter, PadY: 3 * vg.Millimeter,
		PadTop: vg.Millimeter, PadBottom: vg.Millimeter, PadLeft: 2 * vg.Millimeter, PadRight: 4 * vg.Millimeter}
	for i, row := range plot.Align(panels, tiles, draw.New(canvas)) {
		for k, part := range row {
			panels[i][k].Draw(part)
		}
	}
	var text bytes.Buffer
	if _, err := canvas.WriteTo(&text); err != nil {
		return err
	}
	return os.WriteFile(file, families.ReplaceAll(text.Bytes(), []byte("font-family:Helvetica,Arial,sans-serif")), 0o600)
}

// panel draws one quantity.
func (s *series) panel(of int) (*plot.Plot, error) {
	q := quantities[of]
	p := plot.New()
	p.BackgroundColor = nil
	p.Title.Text = q.name
	if q.unit != "" {
		p.Title.Text += ", " + q.unit
	}
	p.Title.TextStyle.Color, p.Title.TextStyle.Font.Size, p.Title.TextStyle.Font.Variant = ink, 10, "Sans"
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.Color, axis.Tick.Color, axis.Tick.Label.Color = ink, ink, ink
		axis.Tick.Label.Font.Size, axis.Tick.Label.Font.Variant = 8, "Sans"
	}
	if of >= len(quantities)-panelsAcross {
		p.X.Label.Text, p.X.Label.TextStyle.Color = "minutes", ink
		p.X.Label.TextStyle.Font.Size, p.X.Label.TextStyle.Font.Variant = 8, "Sans"
	}
	band, err := plotter.NewLine(s.envelope(of))
	if err != nil {
		return p, nil // nothing is known
	}
	band.Color, band.Width = line, vg.Points(0.6)
	p.Add(band)
	if points := s.points(of); len(points) > 2 {
		t, first, last := trendOf(points), points[0].at, points[len(points)-1].at
		trend, err := plotter.NewLine(plotter.XYs{{X: first, Y: t.begin + t.slope*first}, {X: last, Y: t.begin + t.slope*last}})
		if err != nil {
			return nil, err
		}
		trend.Color, trend.Width = drag, vg.Points(1.6)
		p.Add(trend)
	}
	p.X.Min, p.Y.Min = 0, 0
	return p, nil
}

// envelope returns the least and the greatest value of a quantity, in columns of time, while clients were there.
func (s *series) envelope(of int) (all plotter.XYs) {
	if len(s.all) == 0 {
		return nil
	}
	width := s.minute(s.all[len(s.all)-1]) / columns
	low, high, column := math.Inf(1), math.Inf(-1), 0
	flush := func() {
		if low <= high {
			at := (float64(column) + 0.5) * width
			all = append(all, plotter.XY{X: at, Y: low}, plotter.XY{X: at, Y: high})
		}
		low, high = math.Inf(1), math.Inf(-1)
	}
	for _, r := range s.all {
		if next := int(s.minute(r) / width); next != column {
			flush()
			column = next
		}
		if v := r.values[of]; r.active && !math.IsNaN(v) {
			low, high = min(low, v), max(high, v)
		}
	}
	flush()
	return all
}
