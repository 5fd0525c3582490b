package lists

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// TestCollect: a list has all pages, unless a server would go on for ever.
func TestCollect(t *testing.T) {
	page := func(tool, cursor string) string {
		if cursor != "" {
			cursor = fmt.Sprintf(`,"nextCursor":%q`, cursor)
		}
		return fmt.Sprintf(`{"tools":[%s]%s}`, tool, cursor)
	}
	tool := func(n int) string { return fmt.Sprintf(`{"name":"t%d"}`, n) }
	for name, tt := range map[string]struct {
		page        func(n int) string // from 0
		want, pages int
		err         error
	}{
		"many": {func(n int) string {
			if n == 2999 {
				return page(tool(n), "")
			}
			return page(tool(n), fmt.Sprint(n))
		}, 3000, 3000, nil},
		"one cursor for all": {func(n int) string {
			if n == 9 {
				return page(tool(n), "")
			}
			return page(tool(n), "next")
		}, 10, 10, nil},
		"one page again and again": {func(int) string { return page(tool(1), "next") }, 2, 3, nil},
		"empty for ever":           {func(n int) string { return page("", fmt.Sprint(n)) }, 0, maxEmptyPages, nil},
		"long for ever": {func(n int) string {
			return page(`{"name":"`+strings.Repeat("x", 1000)+`"}`, fmt.Sprint(n))
		}, 0, 1000, ErrUnusable},
	} {
		t.Run(name, func(t *testing.T) {
			pages := 0
			ask := func(context.Context, string, json.RawMessage) (json.RawMessage, error) {
				pages++
				return json.RawMessage(tt.page(pages - 1)), nil
			}
			all, err := Collect(t.Context(), ask, "tools/list", "tools", mcp.Legacy, nil, 1<<20)
			if !errors.Is(err, tt.err) || err == nil && len(all.Elements) != tt.want || pages > tt.pages+100 || err == nil && pages != tt.pages {
				t.Errorf("%d elements of %d pages, %v", len(all.Elements), pages, err)
			}
		})
	}
}
