package httpapi

import (
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/select-service/select-service/internal/server/access"
	"github.com/select-service/select-service/internal/server/ui"
)

// Paths of the operators' page.
const (
	pagePath  = "/ui"
	pageFiles = pagePath + "/*file"
)

// addPage registers the page. A browser that asks for / is sent to it; programs get the answer
// that they get without it.
func (e engine) addPage(page *ui.Page) {
	redirect := func(c *gin.Context) {
		c.Writer.Header().Set("Cache-Control", "no-store")
		c.Redirect(http.StatusTemporaryRedirect, page.Address())
	}
	e.routes.get(access.Public, pagePath, plain(redirect))
	missing := e.routes.api.serve(routeNotFound)
	e.routes.get(access.Public, pageFiles, anyScope(endpoint{handle: func(c request) {
		if !page.ServeFile(c.Writer, c.Request, strings.TrimPrefix(c.Param("file"), "/")) {
			missing.handle(c)
		}
	}}))
	unrouted := e.routes.api.unrouted(routeNotFound)
	e.NoRoute(func(c *gin.Context) {
		if ui.WantsPage(c.Request) {
			redirect(c)
			return
		}
		unrouted(c)
	})
}

// showsPage reports whether a request is for the page itself, which has nothing but public files.
func showsPage(c *gin.Context) bool {
	route := c.FullPath()
	return route == pagePath || route == pageFiles || route == "" && ui.WantsPage(c.Request)
}
