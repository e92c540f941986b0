const app = require("./app");

test("a page is rendered", () => expect(app.page()).toContain(`edition ${app.edition}`));
test("the day is formatted", () => expect(app.day()).toBe("2024-01-01"));
test("pairs are made", () => expect(app.pairs()).toEqual([[1, 2], [3]]));
test("numbers come in order", (done) => {
  app.numbers((all) => {
    expect(all).toEqual([1, 2, 3]);
    done();
  });
});
